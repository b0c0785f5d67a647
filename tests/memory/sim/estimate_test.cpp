// The estimate against the peak of the same step on a simulated device.
#include "bellows/memory/estimate.h"

#include <gmock/gmock.h>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include "bellows/core/options.h"
#include "bellows/device/memory.h"
#include "bellows/device/move.h"
#include "bellows/device/sim.h"
#include "bellows/memory/host_memory.h"
#include "bellows/memory/report.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"
#include "tests/support/message_of.h"

namespace bellows::memory {
namespace {

using ::bellows::testing::message_of;
using ::testing::HasSubstr;

c10::Device device() {
  return sim::device(0);
}

struct Case {
  std::string name, model;
  int64_t samples;
  std::string policy = "none";
  bool sgd = false;
  friend std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }
};

// Two layers that share their weight, around a third.
nn::Model tied_model() {
  const at::Tensor w = at::empty({128, 128}).requires_grad_(),
                   v = at::empty({128, 128}).requires_grad_(),
                   out = at::empty({10, 128}).requires_grad_();
  return nn::from_function(
      [=](const Tree& input) -> Tree {
        at::Tensor x = input.tensor().flatten(1).narrow(1, 0, 128);
        std::vector<nn::Block> blocks;
        for (int i = 0; i < 9; ++i)
          blocks.push_back({[=](const at::Tensor& x) {
            return at::tanh(at::linear(at::tanh(at::linear(at::tanh(at::linear(x, w)), v)), w));
          }});
        return at::linear(nn::run_blocks(blocks, x), out);
      },
      {{"first", w}, {"middle", v}, {"last", w}, {"out", out}});
}

nn::Model make_model(const std::string& name) {
  if (name == "tied") return tied_model();
  Options options("model");
  if (name == "resnet18") options.set("classes", int64_t{10});
  if (name == "mlp") options.set("hidden", std::vector<int64_t>{512, 512});
  if (name == "lstm") options.set("layers", int64_t{2});
  return nn::builtin_models().make(name, options);
}

Tree make_batch(const Case& one) {
  const at::Tensor x = one.model == "resnet18" ? at::randn({one.samples, 3, 32, 32})
                                               : at::randn({one.samples, 1, 28, 28});
  return Tree::List{x, at::randint(10, {one.samples}, at::kLong)};
}

at::Tensor loss_of(const nn::Model& model, const Tree& batch) {
  return at::cross_entropy_loss(model.forward(batch[0]).tensor(), batch[1].tensor());
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Case& one, NamedTensors parameters) {
  if (one.sgd)
    return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.momentum = 0.9});
  return std::make_unique<optim::AdamW>(std::move(parameters));
}

EstimateJob job_of(const Case& one) {
  return {[one] { return make_model(one.model); }, loss_of,
          [one](NamedTensors parameters) { return make_optimizer(one, std::move(parameters)); },
          make_batch(one), parse_checkpoint_policy(one.policy)};
}

// Peak of real steps on the device.
int64_t measured(const Case& one) {
  const c10::Device sim = device();
  empty_cache(sim);
  const int64_t before = memory_stats(sim).allocated;
  const nn::Model model = checkpointed(make_model(one.model), parse_checkpoint_policy(one.policy));
  model.to(sim);
  const auto optimizer = make_optimizer(one, model.named_parameters());
  const Tree batch = to(make_batch(one), sim);
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    reset_peak(sim);
    loss_of(model, batch).backward();
    optimizer->step();
  }
  return memory_stats(sim).peak_allocated - before;
}

class EstimateOf : public ::testing::TestWithParam<Case> {};

TEST_P(EstimateOf, IsWithinATenthOfThePeak) {
  const auto peak = static_cast<double>(measured(GetParam()));
  const Estimate guess = estimate(job_of(GetParam()));
  EXPECT_NEAR(static_cast<double>(guess.peak), peak, 0.1 * peak) << guess.table();
  EXPECT_EQ(guess.peak, guess.parameters + guess.buffers + guess.gradients + guess.optimizer +
                            guess.batch + guess.activations + guess.rounding);
}

INSTANTIATE_TEST_SUITE_P(
    Models, EstimateOf,
    ::testing::Values(
        Case{"mlp64", "mlp", 64}, Case{"mlp2048", "mlp", 2048}, Case{"convnet16", "convnet", 16},
        Case{"convnet64", "convnet", 64, "none", true}, Case{"resnet4", "resnet18", 4},
        Case{"resnet32", "resnet18", 32}, Case{"lstm32", "lstm", 32}, Case{"lstm512", "lstm", 512},
        Case{"transformer16", "transformer", 16}, Case{"transformer128", "transformer", 128},
        Case{"resnet32recomputed", "resnet18", 32, "blocks"},
        Case{"transformer128recomputed", "transformer", 128, "blocks"}, Case{"tied64", "tied", 64},
        Case{"tied4096", "tied", 4096}, Case{"tied4096recomputed", "tied", 4096, "segments"}),
    [](const auto& info) { return info.param.name; });

TEST(Estimate, TiedWeightsCountOnce) {
  const Estimate guess = estimate(job_of({"", "tied", 8}));
  EXPECT_EQ(guess.parameters, (2 * 128 * 128 + 10 * 128) * 4);
  EXPECT_EQ(guess.gradients, guess.parameters);
}

TEST(Estimate, RecomputationShowsInWhatIsSaved) {
  const Estimate plain = estimate(job_of({"", "tied", 4096})),
                 less = estimate(job_of({"", "tied", 4096, "segments"}));
  EXPECT_LT(less.saved, plain.saved / 4);
  EXPECT_LT(less.peak, plain.peak);
}

TEST(Estimate, AModelBeyondAnyMachineTakesNoMemory) {
  EstimateJob job = job_of({"", "mlp", 64});
  job.model = [] {
    Options options("model");
    options.set("hidden", std::vector<int64_t>{1 << 20, 1 << 20});  // 4 TiB of weights
    return nn::builtin_models().make("mlp", options);
  };
  const int64_t before = resident_bytes();
  EXPECT_GT(estimate(job).parameters, int64_t{4} << 40);
  EXPECT_LT(resident_bytes() - before, int64_t{64} << 20);
}

TEST(Estimate, AnOperatorWithoutShapesIsNamed) {
  EstimateJob job = job_of({"", "mlp", 4});
  job.loss = [](const nn::Model& model, const Tree& batch) {
    return at::nonzero(model.forward(batch[0]).tensor()).to(at::kFloat).sum();
  };
  EXPECT_THAT(message_of<ValueError>([&] { estimate(job); }),
              ::testing::AllOf(HasSubstr("estimate: "), HasSubstr("aten::nonzero"),
                               HasSubstr("PhasePeaks")));
  EXPECT_THROW(estimate({}), ValueError);
}

TEST(Estimate, TheTableHasItsParts) {
  EXPECT_THAT(estimate(job_of({"", "mlp", 4})).table(),
              ::testing::AllOf(HasSubstr("parameters"), HasSubstr("optimizer state"),
                               HasSubstr("peak"), HasSubstr("CUDA: context")));
}

}  // namespace
}  // namespace bellows::memory
