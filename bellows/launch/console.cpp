#include "bellows/launch/console.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <climits>

namespace bellows::launch {
namespace {

bool same_file(int one, int other) {
  struct stat a {
  }, b{};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

/// Whole lines where one ends in reach, so that another writer of the same pipe cannot come
/// between.
size_t piece_of(std::string_view text) {
  if (text.size() <= PIPE_BUF) return text.size();
  const size_t feed = text.rfind('\n', PIPE_BUF - 1);
  return feed == std::string_view::npos ? PIPE_BUF : feed + 1;
}

}  // namespace

Sink::Sink(int fd) : fd_(fd) {
  struct stat status {};
  file_ = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

bool Sink::takes_more() const {
  pollfd entry{fd_, POLLOUT, 0};
  return ::poll(&entry, 1, 0) == 1;
}

void Sink::flush() {
  while (!broken_ && pending()) {
    if (!file_ && !takes_more()) break;
    const std::string_view rest = std::string_view(queue_).substr(written_);
    const ssize_t count = ::write(fd_, rest.data(), file_ ? rest.size() : piece_of(rest));
    if (count > 0) {
      written_ += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      broken_ = true;
    }
  }
  if (broken_) written_ = queue_.size();
  if (written_ * 2 > queue_.size()) queue_.erase(0, std::exchange(written_, 0));
}

Console::Console(int out, int err)
    : out_(std::make_shared<Sink>(out)),
      err_(same_file(out, err) ? out_ : std::make_shared<Sink>(err)) {}

void Console::flush() {
  out_->flush();
  if (!shared()) err_->flush();
}

}  // namespace bellows::launch
