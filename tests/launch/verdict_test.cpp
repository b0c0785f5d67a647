#include "bellows/launch/verdict.h"

#include <csignal>

#include <gtest/gtest.h>

namespace bellows::launch {
namespace {

/// As waitpid has it.
int exited(int code) {
  return code << 8;
}

class VerdictTest : public ::testing::Test {
 protected:
  VerdictTest() {
    for (int number = 0; number < 3; ++number) ranks_.emplace_back().number = number;
  }
  Rank* end(int number, int status) {
    Rank& rank = ranks_.at(static_cast<size_t>(number));
    rank.status = status;
    rank.ended = std::chrono::seconds(++time_);
    return &rank;
  }
  std::deque<Rank> ranks_;
  int time_ = 0;
};

TEST_F(VerdictTest, ARankThatEndsWellIsNoFailure) {
  EXPECT_EQ(first_failure(ranks_, {}), nullptr);
  EXPECT_EQ(first_failure(ranks_, {end(0, exited(0)), end(1, exited(0))}), nullptr);
}

TEST_F(VerdictTest, OfThoseFoundDeadTogetherASignalIsTheCause) {
  Rank* noticed = end(0, exited(1));
  Rank* killed = end(2, SIGKILL);
  EXPECT_EQ(first_failure(ranks_, {noticed, killed}), killed);
  EXPECT_EQ(exit_code_of(ranks_, killed, 0), 137);
}

TEST_F(VerdictTest, AbortIsNoMoreTellingThanAnExitCodeAndSavingLessThanBoth) {
  Rank* saved_one = end(0, exited(75));
  Rank* failed = end(1, exited(3));
  Rank* aborted = end(2, SIGABRT);
  EXPECT_EQ(first_failure(ranks_, {saved_one, failed, aborted}), failed);
  EXPECT_EQ(first_failure(ranks_, {saved_one}), saved_one);
}

TEST_F(VerdictTest, AskedToEndAllMayBeSavedOrDone) {
  end(0, exited(75));
  end(1, exited(0));
  end(2, exited(75));
  EXPECT_EQ(failure_while_ending(ranks_), nullptr);
  EXPECT_EQ(exit_code_of(ranks_, nullptr, SIGTERM), 75);
}

TEST_F(VerdictTest, AskedToEndAFailureIsOneUnlessSignalsEndedOthers) {
  end(0, exited(75));
  end(1, exited(0));
  Rank* failed = end(2, exited(1));
  EXPECT_EQ(failure_while_ending(ranks_), failed);
  end(1, SIGTERM);
  EXPECT_EQ(failure_while_ending(ranks_), nullptr);
  EXPECT_EQ(exit_code_of(ranks_, nullptr, SIGINT), 130);
}

}  // namespace
}  // namespace bellows::launch
