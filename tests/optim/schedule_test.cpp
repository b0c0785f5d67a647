#include "bellows/optim/schedule.h"

#include <cmath>

#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows::optim {
namespace {

TEST(LinearLRTest, DefaultsArePyTorchs) {
  const LinearLR schedule;
  // torch.optim.lr_scheduler.LinearLR over its first steps: (1/3) (1 + 0.4 k), then 1.
  for (int step = 0; step < 5; ++step) {
    EXPECT_NEAR(schedule.factor(step), (1 + 0.4 * step) / 3, 1e-15);
  }
  EXPECT_EQ(schedule.factor(5), 1.0);
  EXPECT_EQ(schedule.factor(1000), 1.0);
}

TEST(LinearLRTest, DecaysToZero) {
  const LinearLR schedule({.start_factor = 1, .end_factor = 0, .total_iters = 4});
  EXPECT_EQ(schedule.factor(0), 1.0);
  EXPECT_EQ(schedule.factor(1), 0.75);
  EXPECT_EQ(schedule.factor(4), 0.0);
  EXPECT_EQ(schedule.factor(5), 0.0);
}

TEST(LinearLRTest, OptionsAreChecked) {
  EXPECT_THROW(LinearLR({.start_factor = 0}), ValueError);
  EXPECT_THROW(LinearLR({.start_factor = 1.5}), ValueError);
  EXPECT_THROW(LinearLR({.end_factor = -0.1}), ValueError);
  EXPECT_THROW(LinearLR({.end_factor = std::nan("")}), ValueError);
  EXPECT_THROW(LinearLR({.total_iters = 0}), ValueError);
}

}  // namespace
}  // namespace bellows::optim
