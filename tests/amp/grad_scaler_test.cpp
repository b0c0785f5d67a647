#include "bellows/amp/grad_scaler.h"

#include <barrier>
#include <gmock/gmock.h>
#include <limits>
#include <mutex>
#include <thread>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "bellows/amp/autocast.h"
#include "bellows/core/error.h"
#include "bellows/device/seed.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/lbfgs.h"
#include "bellows/optim/schedule.h"
#include "bellows/optim/sgd.h"
#include "tests/support/message_of.h"

namespace bellows::amp {
namespace {

using bellows::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();

at::Tensor parameter(double value = 1) {
  return at::full({2}, value).set_requires_grad(true);
}

class GradScalerTest : public ::testing::Test {
 protected:
  // Gives w the gradient `gradient`, scaled.
  void backward(double gradient) { scaler_.scale(w_.mul(gradient).sum()).backward(); }
  bool iterate(double gradient) {
    sgd_.zero_grad();
    backward(gradient);
    const bool taken = scaler_.step(sgd_);
    scaler_.update();
    return taken;
  }

  at::Tensor w_ = parameter();
  optim::SGD sgd_{{{"layer.w", w_}}, {.lr = 1.0}};
  GradScaler scaler_{{.growth_interval = 3}};
};

TEST_F(GradScalerTest, DefaultsArePythons) {
  const GradScalerOptions options;
  EXPECT_EQ(options.init_scale, 65536);
  EXPECT_EQ(options.growth_factor, 2);
  EXPECT_EQ(options.backoff_factor, 0.5);
  EXPECT_EQ(options.growth_interval, 2000);
  EXPECT_TRUE(GradScaler().is_enabled());
}

TEST_F(GradScalerTest, AGoodStepIsTakenWithUnscaledGradients) {
  EXPECT_TRUE(iterate(0.25));
  EXPECT_EQ(w_.grad()[0].item<float>(), 0.25);
  EXPECT_EQ(w_[0].item<float>(), 0.75);
}

TEST_F(GradScalerTest, AnInfiniteGradientSkipsTheStepAndHalvesTheScaleAndGoodOnesDoubleIt) {
  EXPECT_FALSE(iterate(kInf));
  EXPECT_EQ(w_[0].item<float>(), 1);
  EXPECT_EQ(scaler_.get_scale(), 32768);
  EXPECT_FALSE(iterate(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(scaler_.get_scale(), 16384);
  EXPECT_EQ(scaler_.consecutive_skips(), 2);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(iterate(0.125));
  EXPECT_EQ(scaler_.get_scale(), 32768);
  EXPECT_EQ(scaler_.steps_taken(), 3);
  EXPECT_EQ(scaler_.steps_skipped(), 2);
  EXPECT_EQ(scaler_.consecutive_skips(), 0);
}

// The whole loop under autocast, with clipping, against float32.
TEST_F(GradScalerTest, TrainingUnderAutocastFollowsFloat32) {
  seed_everything(1);
  const at::Tensor x = at::randn({64, 8}), y = x.matmul(at::randn({8, 1}));
  const auto train = [&](std::optional<at::ScalarType> dtype, bool enabled) {
    const at::Tensor w = at::zeros({1, 8}).set_requires_grad(true);
    const NamedTensors parameters{{"w", w}};
    optim::SGD sgd(parameters, {.lr = 0.05});
    GradScaler scaler({.init_scale = 1024, .growth_interval = 20, .enabled = enabled});
    for (int step = 0; step < 40; ++step) {
      sgd.zero_grad();
      at::Tensor loss;
      {
        const Autocast autocast(at::kCPU, {.dtype = dtype, .enabled = dtype.has_value()});
        loss = at::mse_loss(at::linear(x, w), y);
      }
      scaler.scale(loss).backward();
      scaler.unscale_(sgd);
      optim::clip_grad_norm_(parameters, 1.0);
      scaler.step(sgd);
      scaler.update();
    }
    return w.detach();
  };
  const at::Tensor exact = train(std::nullopt, false);
  EXPECT_TRUE(at::equal(train(std::nullopt, true), exact)) << "powers of 2 change no bit";
  EXPECT_TRUE(at::allclose(train(at::kBFloat16, true), exact, 0, 0.03));
  EXPECT_TRUE(at::allclose(train(at::kHalf, true), exact, 0, 0.01));
}

TEST_F(GradScalerTest, SmallGradientsSurviveFloat16OnlyWhenScaled) {
  const at::Tensor w = at::full({1, 4}, 0.5).set_requires_grad(true);
  optim::SGD sgd({{"w", w}}, {.lr = 0.0});
  const auto gradient = [&](bool enabled) {
    GradScaler scaler({.enabled = enabled});
    sgd.zero_grad();
    at::Tensor loss;
    {
      const Autocast autocast(at::kCPU, {.dtype = at::kHalf});
      loss = at::linear(at::ones({1, 4}), w).to(at::kFloat).sum() * 1e-8;
    }
    scaler.scale(loss).backward();
    scaler.unscale_(sgd);
    return w.grad()[0][0].item<float>();
  };
  EXPECT_EQ(gradient(false), 0);
  EXPECT_NEAR(gradient(true), 1e-8, 1e-11);
}

TEST_F(GradScalerTest, ADisabledScalerIsAnExactNoOp) {
  GradScaler off({.growth_factor = -1, .enabled = false});
  const at::Tensor loss = w_.sum();
  EXPECT_TRUE(off.scale(loss).is_same(loss));
  loss.backward();
  off.unscale_(sgd_);
  w_.mutable_grad().fill_(kInf);
  EXPECT_TRUE(off.step(sgd_));
  off.update();
  off.update(3.0);
  EXPECT_EQ(w_[0].item<float>(), -kInf) << "no check either";
  EXPECT_EQ(off.get_scale(), 1);
  EXPECT_TRUE(off.state_dict().dict().empty());
  off.load_state_dict(Tree::Dict{{"anything", 1}});
}

TEST_F(GradScalerTest, UpdateAloneIsEnoughAfterAStepLeftOut) {
  backward(kInf);
  scaler_.unscale_(sgd_);
  scaler_.update();
  EXPECT_EQ(scaler_.get_scale(), 32768);
  EXPECT_TRUE(iterate(0.5));
}

TEST_F(GradScalerTest, MisuseSaysWhatToCall) {
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.step(sgd_); }),
              HasSubstr("call scale(loss).backward() first"));
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.update(); }), HasSubstr("call scale(loss)"));
  const at::Tensor loss = scaler_.scale(w_.sum());
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.unscale_(sgd_); }),
              HasSubstr("none of the optimizer's parameters has a gradient"));
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.update(); }),
              HasSubstr("call step(optimizer) or unscale_(optimizer) first"));
  loss.backward();
  scaler_.unscale_(sgd_);
  EXPECT_THAT(
      message_of<ValueError>([&] { scaler_.unscale_(sgd_); }),
      AllOf(HasSubstr("been unscaled since the last update()"), HasSubstr("call update()")));
  EXPECT_EQ(w_.grad()[0].item<float>(), 1) << "not unscaled twice";
  EXPECT_TRUE(scaler_.step(sgd_));
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.step(sgd_); }),
              AllOf(HasSubstr("has stepped"), HasSubstr("call update()")));
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.unscale_(sgd_); }),
              AllOf(HasSubstr("has stepped"), HasSubstr("call update()")));
  EXPECT_EQ(w_[0].item<float>(), 0);
  scaler_.update();
  EXPECT_TRUE(iterate(1));
}

TEST_F(GradScalerTest, Float16GradientsAreRefusedByNameUnlessAllowed) {
  const at::Tensor half = at::ones({2}, at::kHalf).set_requires_grad(true);
  optim::SGD sgd({{"layer.w", w_}, {"head.weight", half}}, {.lr = 1.0});
  const auto run = [&](GradScaler& scaler) {
    sgd.zero_grad();
    scaler.scale((w_.sum() + half.sum().to(at::kFloat)) * 0.5).backward();
    return scaler.step(sgd);
  };
  EXPECT_THAT(message_of<ValueError>([&] { run(scaler_); }),
              AllOf(HasSubstr("float16"), HasSubstr("'head.weight'")));
  EXPECT_EQ(w_.grad()[0].item<float>(), 32768) << "nothing has been unscaled";
  GradScaler allowing({.init_scale = 1024, .allow_fp16 = true});
  EXPECT_TRUE(run(allowing));
  EXPECT_EQ(half[0].item<float>(), 0.5);
}

TEST_F(GradScalerTest, GradientsOfSeveralTypesAndSparseOnesAreUnscaled) {
  const at::Tensor d = at::ones({3}, at::kDouble).set_requires_grad(true);
  const at::Tensor b = at::ones({3}, at::kBFloat16).set_requires_grad(true);
  const at::Tensor table = at::ones({4, 2}).set_requires_grad(true);
  torch::optim::SGD sgd({w_, d, b, table}, 1.0);
  const at::Tensor rows = at::embedding(table, at::full({2}, 3, at::kLong), -1, false, true);
  scaler_.scale((w_.sum() + d.sum().to(at::kFloat) + b.sum().to(at::kFloat) + rows.sum()) * 0.25)
      .backward();
  ASSERT_TRUE(table.grad().is_sparse());
  EXPECT_TRUE(scaler_.step(sgd));
  EXPECT_EQ(w_[0].item<float>(), 0.75);
  EXPECT_EQ(d[0].item<double>(), 0.75);
  EXPECT_EQ(b[0].item<float>(), 0.75);
  EXPECT_EQ(table[3][0].item<float>(), 0.5);
  EXPECT_EQ(table[0][0].item<float>(), 1);
}

TEST_F(GradScalerTest, LibTorchsOptimizersStepAndLbfgsIsRefused) {
  torch::optim::SGD sgd({w_}, 1.0);
  backward(0.5);
  EXPECT_TRUE(scaler_.step(sgd));
  EXPECT_EQ(w_[0].item<float>(), 0.5);
  scaler_.update();
  torch::optim::LBFGS lbfgs({w_}, 1.0);
  const std::string refused = "LBFGS evaluates the loss several times a step";
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.step(lbfgs); }), HasSubstr(refused));
  const auto adapted = optim::adapt(lbfgs, {{"w", w_}});
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.step(*adapted); }), HasSubstr(refused));
  optim::LBFGS own({{"w", w_}});
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.step(own); }), HasSubstr(refused));
}

TEST_F(GradScalerTest, CastsOfWeightsAreFreshAfterAStepOfLibTorchsOptimizer) {
  const at::Tensor w = at::ones({1, 2}).set_requires_grad(true);
  torch::optim::SGD sgd({w}, 1.0);
  const Autocast autocast(at::kCPU);
  const at::Tensor out = at::linear(at::ones({1, 2}), w);
  scaler_.scale(out.to(at::kFloat).sum() * -3).backward();
  EXPECT_TRUE(scaler_.step(sgd));
  EXPECT_EQ(at::linear(at::ones({1, 2}), w).item<float>(), 8);
}

TEST_F(GradScalerTest, OneBadOptimizerSkipsAloneButTheScaleIsOfBoth) {
  const at::Tensor v = parameter();
  optim::AdamW adamw({{"v", v}});
  backward(0.5);
  scaler_.scale(v.mul(kInf).sum()).backward();
  EXPECT_TRUE(scaler_.step(sgd_));
  EXPECT_FALSE(scaler_.step(adamw));
  scaler_.update();
  EXPECT_EQ(scaler_.get_scale(), 32768);
  EXPECT_EQ(v[0].item<float>(), 1);
}

TEST_F(GradScalerTest, TreesOfTensorsAreScaled) {
  const Tree losses =
      Tree::Dict{{"a", at::ones({})}, {"b", Tree::List{at::ones({}), at::ones({})}}};
  const Tree scaled = scaler_.scale(losses);
  EXPECT_EQ(scaled.at("b")[1].tensor().item<float>(), 65536);
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.scale(Tree(Tree::List{2.5})); }),
              HasSubstr("got double, expected a tensor"));
}

TEST_F(GradScalerTest, ANewScaleMayBeSet) {
  backward(1);
  EXPECT_TRUE(scaler_.step(sgd_));
  scaler_.update(128.0);
  EXPECT_EQ(scaler_.get_scale(), 128);
  EXPECT_TRUE(iterate(1));
  backward(1);
  EXPECT_TRUE(scaler_.step(sgd_));
  scaler_.update(at::full({1}, 4.0));
  EXPECT_EQ(scaler_.get_scale(), 4);
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.update(0.0); }), HasSubstr("new_scale: got 0"));
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.update(at::ones({2})); }),
              HasSubstr("one element"));
}

TEST_F(GradScalerTest, OptionsOutOfRangeAreRefused) {
  for (const GradScalerOptions& wrong : {GradScalerOptions{.init_scale = 0},
                                         {.init_scale = 1e39},
                                         {.growth_factor = 1.0},
                                         {.backoff_factor = 1.0},
                                         {.backoff_factor = 0.0},
                                         {.growth_interval = 0},
                                         {.max_consecutive_skips = -1}}) {
    EXPECT_THAT(message_of<ValueError>([&] { GradScaler scaler(wrong); }),
                AllOf(HasSubstr("got "), HasSubstr("expected ")));
  }
  EXPECT_THROW(scaler_.set_growth_factor(0.5), ValueError);
  scaler_.set_backoff_factor(0.25);
  EXPECT_FALSE(iterate(kInf));
  EXPECT_EQ(scaler_.get_scale(), 16384);
}

TEST_F(GradScalerTest, AStateIsPythonsAndGoesOnWhereItWas) {
  EXPECT_FALSE(iterate(kInf));
  EXPECT_TRUE(iterate(0.1));
  EXPECT_TRUE(iterate(0.1));
  const Tree state = scaler_.state_dict();
  EXPECT_EQ(state.dict().size(), 5);
  EXPECT_EQ(state.at("scale").number(), 32768);
  EXPECT_EQ(state.at("growth_factor").number(), 2);
  EXPECT_EQ(state.at("backoff_factor").number(), 0.5);
  EXPECT_EQ(state.at("growth_interval").integer(), 3);
  EXPECT_EQ(state.at("_growth_tracker").integer(), 2);
  GradScaler resumed;
  resumed.load_state_dict(state);
  EXPECT_EQ(resumed.get_scale(), 32768) << "before it has a device";
  sgd_.zero_grad();
  resumed.scale(w_.sum()).backward();
  EXPECT_TRUE(resumed.step(sgd_));
  resumed.update();
  EXPECT_EQ(resumed.get_scale(), 65536);
  scaler_.load_state_dict(resumed.state_dict());
  EXPECT_EQ(scaler_.get_scale(), 65536) << "after it has one";
}

TEST_F(GradScalerTest, AWrongStateIsRefused) {
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.load_state_dict(Tree::Dict{}); }),
              HasSubstr("saved by a scaler that was not enabled"));
  Tree state = scaler_.state_dict();
  state.dict().erase("scale");
  state.dict()["extra"] = 1;
  EXPECT_THAT(message_of<ValueError>([&] { scaler_.load_state_dict(state); }),
              AllOf(HasSubstr("scale is missing"), HasSubstr("extra is unknown")));
  state = scaler_.state_dict();
  state.dict()["_growth_tracker"] = -1;
  EXPECT_THROW(scaler_.load_state_dict(state), ValueError);
  EXPECT_EQ(scaler_.state_dict().at("_growth_tracker").integer(), 0);
}

TEST_F(GradScalerTest, TooManySkipsInARowAreAnErrorThatNamesTheParameter) {
  const at::Tensor v = parameter();
  optim::SGD sgd({{"encoder.0.weight", w_}, {"head.bias", v}}, {.lr = 1.0});
  GradScaler scaler({.max_consecutive_skips = 2});
  const auto iterate = [&](double bad) {
    sgd.zero_grad();
    scaler.scale(w_.sum() + v.mul(bad).sum()).backward();
    scaler.step(sgd);
    scaler.update();
  };
  for (int i = 0; i < 2; ++i) iterate(kInf);
  iterate(1);  // starts the count anew
  for (int i = 0; i < 2; ++i) iterate(kInf);
  EXPECT_THAT(message_of<NonFiniteError>([&] { iterate(kInf); }),
              AllOf(HasSubstr("3 steps in a row were skipped"), HasSubstr("'head.bias'"),
                    HasSubstr("scale has come down to 4096")));
}

TEST_F(GradScalerTest, TheScaleNeverBecomesZero) {
  GradScaler scaler({.max_consecutive_skips = 0});
  for (int i = 0; i < 200; ++i) {
    sgd_.zero_grad();
    scaler.scale(w_.mul(kInf).sum()).backward();
    EXPECT_FALSE(scaler.step(sgd_));
    scaler.update();
    ASSERT_GT(scaler.get_scale(), 0);
  }
  EXPECT_EQ(scaler.steps_skipped(), 200);
  // 1 / scale is a number still: a good step is a step.
  sgd_.zero_grad();
  scaler.scale(w_.sum()).backward();
  EXPECT_TRUE(scaler.step(sgd_));
}

// Two ranks as threads; one of them has a bad gradient.
TEST_F(GradScalerTest, AllRanksSkipTogether) {
  std::barrier<> barrier(2);
  std::mutex mutex;
  float greatest = 0;
  const auto reduce = [&](at::Tensor& found_inf) {
    {
      const std::lock_guard lock(mutex);
      greatest = std::max(greatest, found_inf.item<float>());
    }
    barrier.arrive_and_wait();
    found_inf.fill_(greatest);
    barrier.arrive_and_wait();
    greatest = 0;
    barrier.arrive_and_wait();
  };
  const auto rank = [&](int number) {
    const at::Tensor w = parameter();
    optim::SGD sgd({{"w", w}}, {.lr = 1.0});
    GradScaler scaler({.max_consecutive_skips = 1, .reduce_found_inf = reduce});
    std::vector<bool> taken;
    std::string error;
    for (int step = 0; step < 5; ++step) {
      const bool bad = number == 1 && (step == 1 || step >= 3);
      sgd.zero_grad();
      scaler.scale(w.mul(bad ? kInf : 0.125).sum()).backward();
      try {
        taken.push_back(scaler.step(sgd));
        scaler.update();
      } catch (const NonFiniteError& failure) {
        error = failure.what();
      }
    }
    EXPECT_EQ(taken, (std::vector<bool>{true, false, true, false}));
    EXPECT_EQ(w[0].item<float>(), 0.75);
    EXPECT_THAT(error, HasSubstr(number == 1 ? "'w'" : "those of another rank are not"));
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
}

// What a trainer does with the answer: 10 batches, 3 of them bad.
TEST_F(GradScalerTest, SchedulesAndCountsFollowTheStepsTaken) {
  const optim::LinearLR schedule({.total_iters = 7});
  const auto rates = [&](const std::vector<double>& gradients) {
    GradScaler scaler;
    int64_t step = 0;
    std::vector<double> used;
    for (const double gradient : gradients) {
      sgd_.set_lr(0, 1e-3 * schedule.factor(step));
      sgd_.zero_grad();
      scaler.scale(w_.mul(gradient).sum()).backward();
      if (scaler.step(sgd_)) {
        used.push_back(sgd_.lr(0));
        ++step;
      }
      scaler.update();
    }
    EXPECT_EQ(step, scaler.steps_taken());
    return used;
  };
  const auto with_bad = rates({kInf, 1, 1, kInf, 1, 1, 1, kInf, 1, 1});
  EXPECT_EQ(with_bad.size(), 7);
  EXPECT_EQ(with_bad, rates(std::vector<double>(7, 1.0)));
}

}  // namespace
}  // namespace bellows::amp
