#include "bellows/core/interrupt.h"

#include <array>
#include <atomic>
#include <signal.h>
#include <unistd.h>

namespace bellows {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGUSR1};

constinit std::atomic<int> received{0};
constinit std::atomic<bool> next_ends_process{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "only lock-free atomics may be touched in a signal handler");

extern "C" void bellows_on_interrupt(int signal) {
  if (next_ends_process.load() || received.exchange(signal) != 0) _exit(128 + signal);
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
  action.sa_handler = bellows_on_interrupt;
  action.sa_flags = SA_RESTART;
  action.sa_mask = signal_set();
  sigaction(signal, &action, nullptr);
}

}  // namespace

void hold_interrupts() {
  const sigset_t set = signal_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void install_interrupt_handlers() {
  for (int signal : kSignals) install_unless_taken(signal);
  const sigset_t set = signal_set();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

int interrupted() {
  return received.load(std::memory_order_relaxed);
}

void clear_interrupt() {
  received.store(0);
}

void interrupts_end_process() {
  next_ends_process.store(true);
  install_interrupt_handlers();
}

}  // namespace bellows
