#include "bellows/core/interrupt.h"

#include <fstream>
#include <functional>
#include <signal.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace bellows {
namespace {

constexpr int kPassed = 42;

// Signals change the whole process, so every case runs in a child; `body` returns whether it
// passed. Gives the exit code, or 1000 + the signal that ended the child.
int run_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGUSR1, SIG_DFL);
    _exit(body() ? kPassed : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool is_asleep(pid_t process) {
  std::ifstream in("/proc/" + std::to_string(process) + "/stat");
  std::string number, name, state;
  in >> number >> name >> state;
  return state == "S";
}

TEST(InterruptTest, WithoutHandlersASignalKills) {
  EXPECT_EQ(run_child([] { return raise(SIGTERM) == 0; }), 1000 + SIGTERM);
}

TEST(InterruptTest, FirstSignalIsRemembered) {
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    EXPECT_EQ(run_child([=] {
                install_interrupt_handlers();
                const bool none_before = interrupted() == 0;
                raise(signal);
                return none_before && interrupted() == signal;
              }),
              kPassed);
  }
}

// What a batch system sends to every process, a launcher passes on.
TEST(InterruptTest, UnderALauncherOneSignalFromTwoSidesIsOneRequest) {
  const auto send = [](std::vector<bool> by_parent, bool launched) {
    int ready[2] = {};
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      if (launched) setenv("LOCAL_RANK", "0", 1);
      install_interrupt_handlers();
      static_cast<void>(write(ready[1], "x", 1));
      for (int i = 0; i < 100; ++i) usleep(10'000);
      _exit(interrupted() == SIGTERM ? kPassed : 1);
    }
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    for (const bool parent : by_parent) {
      if (parent) {
        kill(child, SIGTERM);
      } else if (const pid_t other = fork(); other == 0) {
        kill(child, SIGTERM);
        _exit(0);
      } else {
        waitpid(other, nullptr, 0);
      }
      usleep(50'000);
    }
    int status = 0;
    waitpid(child, &status, 0);
    close(ready[0]);
    close(ready[1]);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
  };
  EXPECT_EQ(send({true}, true), kPassed);
  EXPECT_EQ(send({false, true}, true), kPassed);
  EXPECT_EQ(send({true, false}, true), kPassed);
  EXPECT_EQ(send({true, true}, true), 128 + SIGTERM);
  EXPECT_EQ(send({false, false}, true), 128 + SIGTERM);
  EXPECT_EQ(send({false, true, true}, true), 128 + SIGTERM);
  EXPECT_EQ(send({false, true}, false), 128 + SIGTERM);
}

TEST(InterruptTest, SecondSignalEndsTheProcessWithItsOwnCode) {
  const auto send = [](int first, int second) {
    return run_child([=] {
      install_interrupt_handlers();
      raise(first);
      raise(second);
      return true;
    });
  };
  EXPECT_EQ(send(SIGINT, SIGINT), 130);
  EXPECT_EQ(send(SIGINT, SIGTERM), 143);
  EXPECT_EQ(send(SIGTERM, SIGINT), 130);
  EXPECT_EQ(send(SIGUSR1, SIGTERM), 143);
  EXPECT_EQ(send(SIGTERM, SIGUSR1), 138);
}

TEST(InterruptTest, InstallingTwiceKeepsWhatWasReceived) {
  EXPECT_EQ(run_child([] {
              install_interrupt_handlers();
              raise(SIGINT);
              install_interrupt_handlers();
              return interrupted() == SIGINT;
            }),
            kPassed);
}

TEST(InterruptTest, HeldSignalArrivesWhenHandlersStand) {
  EXPECT_EQ(run_child([] {
              hold_interrupts();
              raise(SIGTERM);
              const bool held = interrupted() == 0;
              install_interrupt_handlers();
              return held && interrupted() == SIGTERM;
            }),
            kPassed);
}

TEST(InterruptTest, HoldSurvivesExec) {
  const auto exec_shell = [](bool hold) {
    return run_child([=] {
      if (hold) hold_interrupts();
      execl("/bin/sh", "sh", "-c", "kill -INT $$; exit 42", nullptr);
      return false;
    });
  };
  EXPECT_EQ(exec_shell(false), 1000 + SIGINT);
  EXPECT_EQ(exec_shell(true), kPassed);
}

TEST(InterruptTest, SignalIgnoredByTheParentStaysIgnored) {
  EXPECT_EQ(run_child([] {
              signal(SIGINT, SIG_IGN);
              hold_interrupts();
              raise(SIGINT);
              install_interrupt_handlers();
              raise(SIGINT);
              const bool ignored = interrupted() == 0;
              raise(SIGTERM);
              return ignored && interrupted() == SIGTERM;
            }),
            kPassed);
}

TEST(InterruptTest, ProgramsOwnHandlerOfUserSignalsStays) {
  EXPECT_EQ(run_child([] {
              static volatile sig_atomic_t own = 0;
              signal(SIGUSR1, [](int) { own = 1; });
              install_interrupt_handlers();
              raise(SIGUSR1);
              return own == 1 && interrupted() == 0;
            }),
            kPassed);
}

TEST(InterruptTest, ClearedSignalCountsAsNone) {
  EXPECT_EQ(run_child([] {
              install_interrupt_handlers();
              raise(SIGINT);
              clear_interrupt();
              const bool none = interrupted() == 0;
              raise(SIGTERM);
              return none && interrupted() == SIGTERM;
            }),
            kPassed);
}

TEST(InterruptTest, NextSignalEndsAProcessThatIsLeaving) {
  EXPECT_EQ(run_child([] {
              install_interrupt_handlers();
              interrupts_end_process();
              raise(SIGTERM);
              return true;
            }),
            143);
}

TEST(InterruptTest, SignalHeldUntilLeavingEndsTheProcess) {
  EXPECT_EQ(run_child([] {
              hold_interrupts();
              raise(SIGINT);
              interrupts_end_process();
              return true;
            }),
            130);
}

TEST(InterruptTest, ReadInProgressIsRestarted) {
  EXPECT_EQ(run_child([] {
              int ends[2];
              if (pipe(ends) != 0) return false;
              install_interrupt_handlers();
              const pid_t reader = getpid();
              if (fork() == 0) {
                while (!is_asleep(reader)) usleep(100);
                kill(reader, SIGINT);
                usleep(10000);
                _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
              }
              char byte = 0;
              return read(ends[0], &byte, 1) == 1 && byte == 'x' && interrupted() == SIGINT;
            }),
            kPassed);
}

}  // namespace
}  // namespace bellows
