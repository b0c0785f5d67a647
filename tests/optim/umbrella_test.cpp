// The umbrella header has every public name of this module.
#include <tuple>

#include <gtest/gtest.h>

#include "bellows/bellows.h"

namespace bellows::optim {
namespace {

using Optimizers = std::tuple<Adadelta*, Adafactor*, Adagrad*, Adam*, Adamax*, AdamW*, ASGD*, LAMB*,
                              LARS*, LBFGS*, Lion*, Muon*, NAdam*, RAdam*, RMSprop*, Rprop*, SGD*>;
using Schedules =
    std::tuple<LambdaLR*, MultiplicativeLR*, StepLR*, MultiStepLR*, ConstantLR*, LinearLR*,
               ExponentialLR*, PolynomialLR*, CosineAnnealingLR*, CosineAnnealingWarmRestarts*,
               CyclicLR*, OneCycleLR*, SequentialLR*, ChainedScheduler*, WarmupCosine*, SWALR*,
               ReduceLROnPlateau*, LRScheduler*>;
using Others = std::tuple<AveragedModel*, GroupRule*, LRFinderResult*, ScheduleChoice*>;

using Functions =
    std::tuple<decltype(&make_optimizer), decltype(&make_schedule), decltype(&adapt),
               decltype(&clip_grad_norm_), decltype(&clip_grad_value_), decltype(&get_total_norm),
               decltype(&update_bn), decltype(&find_lr), decltype(&freeze)>;

TEST(UmbrellaTest, HasAllNames) {
  EXPECT_EQ(std::tuple_size_v<Optimizers>, 17U);
  EXPECT_EQ(std::tuple_size_v<Schedules>, 18U);
  EXPECT_EQ(std::tuple_size_v<Others>, 4U);
  EXPECT_EQ(std::tuple_size_v<Functions>, 9U);
}

}  // namespace
}  // namespace bellows::optim
