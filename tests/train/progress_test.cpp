#include "bellows/train/progress.h"

#include <gmock/gmock.h>
#include <sstream>

#include <gtest/gtest.h>

#include "bellows/core/clock.h"
#include "bellows/train/trainer.h"

namespace bellows::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class HandClock : public Clock {
 public:
  Duration now() const override { return time; }
  Duration time{0};
};

/// ProgressDisplay looks at the numbers alone, so no trainer is needed.
class ProgressDisplayTest : public ::testing::Test {
 protected:
  void start(bool terminal) {
    display_.emplace(out_, ProgressDisplayOptions{.terminal = terminal});
    progress_.epochs = 2;
    progress_.batches = 100;
    display_->on_start(trainer(), progress_);
  }
  void steps(int count, std::chrono::milliseconds each) {
    for (int i = 0; i < count; ++i) {
      clock_.time += each;
      ++progress_.step;
      ++progress_.batch;
      progress_.samples += 10;
      progress_.seconds += std::chrono::duration<double>(each).count();
      progress_.loss = 0.5;
      display_->on_step(trainer(), progress_);
    }
  }
  static Trainer& trainer() {
    static char nothing = 0;
    return reinterpret_cast<Trainer&>(nothing);
  }
  HandClock clock_;
  ScopedClock scoped_{clock_};
  std::ostringstream out_;
  std::optional<ProgressDisplay> display_;
  Progress progress_;
};

TEST_F(ProgressDisplayTest, PlainLinesComeEveryTenSecondsWithoutControlCharacters) {
  start(false);
  steps(25, std::chrono::seconds(1));
  const std::string text = out_.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text,
              HasSubstr("epoch 1/2 [##......................] 10/100  loss 0.5000  10 samples/s"));
  EXPECT_THAT(text, HasSubstr("left 3:10"));
}

TEST_F(ProgressDisplayTest, TerminalLineIsRedrawnAtMostTenTimesASecond) {
  start(true);
  steps(100, std::chrono::milliseconds(10));
  const std::string text = out_.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 10);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 0);
}

TEST_F(ProgressDisplayTest, EpochEndIsAlwaysALineWithItsMetrics) {
  start(true);
  steps(100, std::chrono::milliseconds(10));
  progress_.epoch = 1;
  display_->on_epoch(trainer(), progress_, {{"test_accuracy", 0.9}, {"train_loss", 0.25}});
  EXPECT_THAT(
      out_.str(),
      HasSubstr(
          "epoch 1/2 done, step 100  test_accuracy 0.9000  train_loss 0.2500  1000 samples/s\n"));
}

TEST_F(ProgressDisplayTest, ShareOfWaitingIsShown) {
  start(false);
  progress_.wait_seconds = 2.5;
  steps(10, std::chrono::seconds(1));
  EXPECT_THAT(out_.str(), HasSubstr("data wait 25.0 %"));
}

}  // namespace
}  // namespace bellows::train
