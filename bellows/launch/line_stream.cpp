#include "bellows/launch/line_stream.h"

#include <algorithm>

namespace bellows::launch {
namespace {

constexpr size_t kLongestLine = 16 << 20;
constexpr size_t kTail = 16 << 10;
constexpr size_t kShownOfALine = 500;

}  // namespace

void LineStream::feed(std::string_view bytes, std::string& out) {
  for (size_t feed = bytes.find('\n'); feed != std::string_view::npos; feed = bytes.find('\n')) {
    out += prefix_;
    out += partial_;
    out += bytes.substr(0, feed + 1);
    partial_.clear();
    bytes.remove_prefix(feed + 1);
  }
  partial_ += bytes;
  if (partial_.size() > kLongestLine) finish(out);
}

void LineStream::show_progress(std::string& out) {
  const size_t end = partial_.rfind('\r');
  if (end == std::string::npos) return;
  out += prefix_;
  out += std::string_view(partial_).substr(0, end + 1);
  partial_.erase(0, end + 1);
}

void LineStream::finish(std::string& out) {
  if (partial_.empty()) return;
  out += prefix_;
  out += partial_;
  out += '\n';
  partial_ = {};
}

void Tail::feed(std::string_view bytes) {
  if (bytes.size() >= kTail) {
    bytes_ = bytes.substr(bytes.size() - kTail);
    return;
  }
  bytes_ += bytes;
  if (bytes_.size() > 2 * kTail) bytes_.erase(0, bytes_.size() - kTail);
}

std::string Tail::lines(int count, std::string_view before_each) const {
  std::string_view text = bytes_;
  while (text.ends_with('\n')) text.remove_suffix(1);
  size_t begin = text.size();
  for (int i = 0; i < count && begin != std::string_view::npos && begin > 0; ++i) {
    begin = text.rfind('\n', begin - 1);
  }
  if (begin != std::string_view::npos && !text.empty())
    text.remove_prefix(begin == 0 ? 0 : begin + 1);
  std::string result;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    result += before_each;
    for (const char c : line.substr(0, kShownOfALine)) {
      result += static_cast<unsigned char>(c) < 0x20 && c != '\t' ? ' ' : c;
    }
    result += line.size() > kShownOfALine ? " …\n" : "\n";
  }
  return result;
}

}  // namespace bellows::launch
