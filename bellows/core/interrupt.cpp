#include "bellows/core/interrupt.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <signal.h>
#include <unistd.h>

namespace bellows {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGUSR1};

constinit std::atomic<int> received{0};
constinit std::atomic<bool> next_ends_process{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "only lock-free atomics may be touched in a signal handler");

// Under a launcher a batch system's signal to all processes comes twice: from there and, passed on,
// from the launcher. Those two are one request.
constinit std::atomic<pid_t> launcher{0};  // the parent; 0: there is none
constinit std::atomic<pid_t> first_sender{0};
constinit std::atomic<bool> came_twice{false};

bool is_passed_on(int signal, pid_t sender) {
  const pid_t parent = launcher.load();
  return parent != 0 && received.load() == signal && !came_twice.exchange(true) &&
         (sender == parent) != (first_sender.load() == parent);
}

extern "C" void bellows_on_interrupt(int signal, siginfo_t* info, void*) {
  int none = 0;
  if (!next_ends_process.load() && received.compare_exchange_strong(none, signal)) {
    first_sender.store(info->si_pid);
  } else if (!is_passed_on(signal, info->si_pid)) {
    _exit(128 + signal);
  }
}

sigset_t signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : kSignals) sigaddset(&set, signal);
  return set;
}

void install_unless_taken(int signal) {
  struct sigaction current = {};
  sigaction(signal, nullptr, &current);
  const bool is_default = (current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_DFL;
  if ((current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_IGN) return;
  if (signal == SIGUSR1 && !is_default) return;  // a program's own, or this one already
  struct sigaction action = {};
  action.sa_sigaction = bellows_on_interrupt;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  action.sa_mask = signal_set();
  sigaction(signal, &action, nullptr);
}

}  // namespace

void hold_interrupts() {
  const sigset_t set = signal_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void install_interrupt_handlers() {
  // Whatever starts ranks sets it: bellows launch, torchrun.
  if (std::getenv("LOCAL_RANK") != nullptr) launcher.store(::getppid());
  for (int signal : kSignals) install_unless_taken(signal);
  const sigset_t set = signal_set();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

int interrupted() {
  return received.load(std::memory_order_relaxed);
}

void clear_interrupt() {
  received.store(0);
  came_twice.store(false);
}

void interrupts_end_process() {
  next_ends_process.store(true);
  install_interrupt_handlers();
}

}  // namespace bellows
