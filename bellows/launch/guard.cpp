#include "bellows/launch/guard.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "bellows/core/error.h"

namespace bellows::launch {
namespace {

/// Holds nothing open but the pipe: who waits for the end of the launcher's output need not wait
/// for the guard.
void leave_everything_but(int pipe) {
  ::setsid();
  ::prctl(PR_SET_NAME, "bellows-guard");
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (pipe < 3) pipe = ::fcntl(pipe, F_DUPFD_CLOEXEC, 3);
  ::dup2(pipe, 3);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  ::close_range(4, ~0U, 0);
  if (::chdir("/") != 0) return;  // no folder is kept busy; where that fails nothing is lost
}

[[noreturn]] void watch_over(int pipe) {
  leave_everything_but(pipe);
  std::set<pid_t> groups;
  for (pid_t group = 0;;) {
    const ssize_t count = ::read(3, &group, sizeof(group));
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof(group)) break;
    if (group > 0) groups.insert(group);
    if (group < 0) groups.erase(-group);
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

Guard::Guard() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw EnvironmentError(std::string("a pipe cannot be opened: ") + std::strerror(errno));
  }
  Descriptor reading(ends[0]);
  pipe_ = Descriptor(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) {
    throw EnvironmentError(std::string("no process can be started: ") + std::strerror(errno));
  }
  if (pid_ == 0) watch_over(reading.get());
}

Guard::~Guard() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Guard::watch(pid_t group) const {
  if (::write(pipe_.get(), &group, sizeof(group)) < 0) return;  // the guard was killed: go on
}

}  // namespace bellows::launch
