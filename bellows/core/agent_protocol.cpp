#include "bellows/core/agent_protocol.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace bellows::agent {
namespace {

constexpr size_t kLongestName = 64;
constexpr std::array<std::pair<Kind, std::string_view>, 7> kKinds = {{
    {Kind::hello, "hello"},
    {Kind::phase, "phase"},
    {Kind::collective, "collective"},
    {Kind::done, "done"},
    {Kind::exception, "exception"},
    {Kind::bye, "bye"},
    {Kind::stop, "stop"},
}};
constexpr std::array<std::pair<std::string_view, int64_t Message::*>, 8> kNumbers = {{
    {"version", &Message::version},
    {"rank", &Message::rank},
    {"pid", &Message::pid},
    {"step", &Message::step},
    {"sequence", &Message::sequence},
    {"bucket", &Message::bucket},
    {"seconds", &Message::seconds},
    {"lost", &Message::lost},
}};

bool plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_.:/+-").find(c) != std::string_view::npos;
}

class Writer {
 public:
  explicit Writer(std::span<char> buffer) : buffer_(buffer) {}
  void add(std::string_view text) {
    const size_t length = std::min(text.size(), buffer_.size() - used_);
    std::copy_n(text.begin(), length, buffer_.begin() + static_cast<std::ptrdiff_t>(used_));
    used_ += length;
  }
  void add(std::string_view key, int64_t value) {
    std::array<char, 24> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    add(" ");
    add(key);
    add("=");
    add({digits.data(), static_cast<size_t>(end - digits.data())});
  }
  void add(std::string_view key, std::string_view word) {
    add(" ");
    add(key);
    add("=");
    for (const char c : word.substr(0, kLongestName)) {
      const char written = plain(c) ? c : '_';
      add({&written, 1});
    }
  }
  size_t used() const { return used_; }

 private:
  std::span<char> buffer_;
  size_t used_ = 0;
};

bool read_number(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

bool read_field(std::string_view field, Message& message) {
  const size_t equals = field.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view key = field.substr(0, equals), value = field.substr(equals + 1);
  if (key == "name" || key == "secret") {
    (key == "name" ? message.name : message.secret) = value;
    return value.size() <= kLongestName && std::all_of(value.begin(), value.end(), plain);
  }
  for (const auto& [name, member] : kNumbers) {
    if (name == key) return read_number(value, message.*member);
  }
  return true;
}

}  // namespace

size_t encode(const Message& message, std::span<char> buffer) noexcept {
  Writer writer(buffer);
  for (const auto& [kind, word] : kKinds) {
    if (kind == message.kind) writer.add(word);
  }
  for (const auto& [key, member] : kNumbers) {
    if (message.*member >= 0) writer.add(key, message.*member);
  }
  if (!message.secret.empty()) writer.add("secret", message.secret);
  if (!message.name.empty()) writer.add("name", message.name);
  if (!message.text.empty()) {
    writer.add("\n");
    writer.add(message.text);
  }
  return writer.used();
}

std::optional<Message> decode(std::string_view packet) noexcept {
  Message message;
  const size_t feed = packet.find('\n');
  std::string_view head = packet.substr(0, feed);
  if (feed != std::string_view::npos) message.text = packet.substr(feed + 1);
  const std::string_view word = head.substr(0, head.find(' '));
  const auto* found = std::find_if(kKinds.begin(), kKinds.end(),
                                   [&](const auto& entry) { return entry.second == word; });
  if (found == kKinds.end()) return std::nullopt;
  message.kind = found->first;
  head.remove_prefix(word.size());
  while (!head.empty()) {
    head.remove_prefix(1);  // the space
    const std::string_view field = head.substr(0, head.find(' '));
    if (!read_field(field, message)) return std::nullopt;
    head.remove_prefix(field.size());
  }
  return message;
}

}  // namespace bellows::agent
