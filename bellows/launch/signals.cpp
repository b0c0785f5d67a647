#include "bellows/launch/signals.h"

#include <cerrno>
#include <cstring>
#include <sys/signalfd.h>

#include "bellows/core/error.h"

namespace bellows::launch {
namespace {

bool ignored(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

SignalQueue::SignalQueue(const std::set<int>& more) {
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &plain, &child_);  // ignored, it would hide how ranks end
  plain.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &plain, &pipe_);
  ::sigaction(SIGXFSZ, &plain, &size_);
  std::set<int> wanted{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT};
  wanted.insert(more.begin(), more.end());
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int signal : wanted) {
    if (!ignored(signal)) sigaddset(&set, signal);
  }
  ::sigprocmask(SIG_BLOCK, &set, &before_);
  programs_ = before_;
  for (const int signal : wanted) sigdelset(&programs_, signal);
  sigdelset(&programs_, SIGCHLD);
  queue_ = Descriptor(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!queue_.open()) {
    throw EnvironmentError(std::string("signals cannot be received: ") + std::strerror(errno));
  }
}

SignalQueue::~SignalQueue() {
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  ::sigaction(SIGPIPE, &pipe_, nullptr);
  ::sigaction(SIGXFSZ, &size_, nullptr);
  ::sigaction(SIGCHLD, &child_, nullptr);
}

std::optional<int> SignalQueue::next() const {
  signalfd_siginfo info{};
  if (::read(queue_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void SignalQueue::restore() const {
  ::sigaction(SIGPIPE, &pipe_, nullptr);
  ::sigaction(SIGXFSZ, &size_, nullptr);
  ::sigprocmask(SIG_SETMASK, &programs_, nullptr);
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : std::string("SIG") + name;
}

std::optional<int> signal_number(const std::string& name) {
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* abbreviation = ::sigabbrev_np(signal);
    if (abbreviation != nullptr &&
        (name == abbreviation || name == std::string("SIG") + abbreviation)) {
      return signal;
    }
  }
  return std::nullopt;
}

}  // namespace bellows::launch
