#include "bellows/optim/averaged_model.h"

#include <cmath>
#include <gmock/gmock.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/support/message_of.h"

namespace bellows::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

/// A weight, a running mean and a count, set to the number of the step.
struct Model {
  at::Tensor weight = at::full({3}, 0.0, at::kDouble).set_requires_grad(true);
  at::Tensor mean = at::full({2}, 0.0, at::kDouble);
  at::Tensor count = at::full({}, 0, at::kLong);

  NamedTensors parameters() const { return {{"weight", weight}}; }
  NamedTensors buffers() const { return {{"mean", mean}, {"count", count}}; }
  void set(double value) const {
    weight.detach().fill_(value);
    mean.detach().fill_(value);
    count.detach().fill_(static_cast<int64_t>(value));
  }
};

double value_of(const AveragedModel& average, size_t tensor) {
  return average.tensors()[tensor].second.reshape({-1})[0].item<double>();
}

TEST(AveragedModelTest, EqualAverageIsTheMeanOfAllUpdates) {
  const Model model;
  AveragedModel average(model.parameters(), model.buffers());
  for (int step = 1; step <= 9; ++step) {
    model.set(step);
    average.update_parameters();
  }
  EXPECT_NEAR(value_of(average, 0), 5, 1e-6);  // weights of the average are float32, as in Python
  EXPECT_EQ(value_of(average, 1), 9);          // buffers are the last
  EXPECT_EQ(average.n_averaged(), 9);
  EXPECT_EQ(model.weight[0].item<double>(), 9);
}

TEST(AveragedModelTest, ExponentialAverageKeepsTheDecaysShare) {
  const Model model;
  AveragedModel average(model.parameters(), {}, {.ema_decay = 0.75});
  double expected = 0;
  for (int step = 1; step <= 6; ++step) {
    model.set(step);
    average.update_parameters();
    expected = step == 1 ? step : 0.75 * expected + 0.25 * step;
  }
  EXPECT_NEAR(value_of(average, 0), expected, 1e-12);
}

TEST(AveragedModelTest, BuffersAreAveragedWhereAskedFor) {
  const Model model;
  AveragedModel average(model.parameters(), model.buffers(),
                        {.ema_decay = 0.5, .use_buffers = true});
  model.set(2);
  average.update_parameters();
  model.set(5);
  average.update_parameters();
  EXPECT_EQ(value_of(average, 1), 3.5);
  EXPECT_EQ(value_of(average, 2), 3);  // whole numbers are cut off, as in Python
}

TEST(AveragedModelTest, SwapExchangesModelAndAverageAndBack) {
  const Model model;
  AveragedModel average(model.parameters(), model.buffers(), {.ema_decay = 0.5});
  model.set(2);
  average.update_parameters();
  model.set(4);
  average.update_parameters();
  const void* const memory = model.weight.data_ptr();
  average.swap();
  EXPECT_EQ(model.weight[0].item<double>(), 3);
  EXPECT_EQ(value_of(average, 0), 4);
  average.swap();
  EXPECT_EQ(model.weight[0].item<double>(), 4);
  EXPECT_EQ(model.weight.data_ptr(), memory);
  EXPECT_TRUE(model.weight.requires_grad());
}

TEST(AveragedModelTest, RestoredItGoesOn) {
  const Model straight, stopped;
  AveragedModel unbroken(straight.parameters(), straight.buffers());
  AveragedModel first(stopped.parameters(), stopped.buffers());
  for (int step = 1; step <= 3; ++step) {
    straight.set(step);
    stopped.set(step);
    unbroken.update_parameters();
    first.update_parameters();
  }
  AveragedModel second(stopped.parameters(), stopped.buffers());
  second.load_state_dict(first.state_dict());
  straight.set(11);
  stopped.set(11);
  unbroken.update_parameters();
  second.update_parameters();
  EXPECT_TRUE(at::equal(second.tensors()[0].second, unbroken.tensors()[0].second));
  EXPECT_EQ(second.n_averaged(), 4);
}

TEST(AveragedModelTest, TheAverageFollowsAModelOfAnotherType) {
  const Model model;
  AveragedModel average(model.parameters(), {}, {.ema_decay = 0.5});
  model.set(2);
  average.update_parameters();
  at::Tensor weight = model.weight;
  weight.set_data(weight.detach().to(at::kFloat).fill_(4));
  average.update_parameters();
  EXPECT_EQ(average.tensors()[0].second.scalar_type(), at::kFloat);
  EXPECT_EQ(value_of(average, 0), 3);
}

TEST(AveragedModelTest, StateThatDoesNotFitIsRefusedWithAllNames) {
  const Model model;
  AveragedModel average(model.parameters(), model.buffers());
  Tree state = average.state_dict();
  Tree::Dict& saved = state.dict()["averages"].dict();
  saved.erase("mean");
  saved["weight"] = at::ones({5});
  saved["speed"] = at::ones({1});
  EXPECT_THAT(message_of<ValueError>([&] { average.load_state_dict(state); }),
              AllOf(HasSubstr("mean is missing"), HasSubstr("weight is no tensor of shape [3]"),
                    HasSubstr("speed is unexpected")));
}

TEST(AveragedModelTest, OptionsAreChecked) {
  const Model model;
  EXPECT_THROW(AveragedModel(model.parameters(), {}, {.ema_decay = 1.5}), ValueError);
  EXPECT_THROW(AveragedModel({}), ValueError);
  EXPECT_THROW(AveragedModel(model.parameters(), model.parameters()), ValueError);
}

}  // namespace
}  // namespace bellows::optim
