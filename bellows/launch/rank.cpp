#include "bellows/launch/rank.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <sys/wait.h>

#include "bellows/core/text.h"

namespace bellows::launch {
namespace {

constexpr size_t kReadAtOnce = 256 << 10;

}  // namespace

bool RankOutput::read(Console& console, Sink& sink) {
  static std::array<char, kReadAtOnce> buffer;
  if (!pipe.open()) return false;
  const ssize_t count = ::read(pipe.get(), buffer.data(), buffer.size());
  if (count < 0 && errno == EINTR) return true;
  if (count < 0 && errno == EAGAIN) return false;
  if (count <= 0) {
    pipe.close();
    if (shown) lines.finish(sink.queue());
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<size_t>(count));
  last = monotonic_clock().now();
  tail.feed(bytes);
  if (shown) lines.feed(bytes, sink.queue());
  if (file.open()) write_file(bytes, console);
  return true;
}

void RankOutput::finish(Console& console, Sink& sink) {
  while (read(console, sink)) {
  }
  pipe.close();
  if (shown) lines.finish(sink.queue());
}

void RankOutput::write_file(std::string_view bytes, Console& console) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      console.say(concat("bellows launch: ", file_path.string(), ": write: ", std::strerror(errno),
                         "; nothing more goes there, the job goes on\n"));
      file.close();
      return;
    }
  }
}

int Rank::code() const {
  if (!status) return -1;
  return WIFSIGNALED(*status) ? 128 + WTERMSIG(*status) : WEXITSTATUS(*status);
}

bool Rank::ended_by(int signal) const {
  return status && code() == 128 + signal;
}

void Rank::signal(int number) {
  if (group_gone) return;
  if (::kill(-child.pid, number) != 0) return;
  if (number == SIGTSTP || number == SIGCONT) return;
  if (running() && sent != SIGKILL) sent = number;
  ::kill(-child.pid, SIGCONT);
}

void Rank::look_at_group() {
  if (!running() && ::kill(-child.pid, 0) != 0 && errno == ESRCH) group_gone = true;
}

double Rank::seconds() const {
  return std::chrono::duration<double>((running() ? monotonic_clock().now() : ended) - started)
      .count();
}

}  // namespace bellows::launch
