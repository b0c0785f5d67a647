// What holds for every optimizer.
#include <atomic>
#include <functional>
#include <gmock/gmock.h>
#include <map>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/optim/adadelta.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/adagrad.h"
#include "bellows/optim/adam.h"
#include "bellows/optim/adamax.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/asgd.h"
#include "bellows/optim/lamb.h"
#include "bellows/optim/lars.h"
#include "bellows/optim/lion.h"
#include "bellows/optim/muon.h"
#include "bellows/optim/nadam.h"
#include "bellows/optim/radam.h"
#include "bellows/optim/rmsprop.h"
#include "bellows/optim/rprop.h"
#include "bellows/optim/sgd.h"
#include "tests/support/message_of.h"

namespace bellows::optim {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

/// By configuration: what every optimizer has in common can be asked of all of them.
std::unique_ptr<Optimizer> make(const std::string& name, const NamedTensors& parameters,
                                const std::string& implementation = "auto") {
  Options options("optim");
  options.set("name", name);
  options.set("implementation", implementation);
  return make_optimizer(options, parameters);
}

NamedTensors matrices(c10::ScalarType type = at::kFloat) {
  NamedTensors parameters;
  for (const char* const name : {"a", "b"}) {
    const at::Tensor value = at::arange(1, 129, type).reshape({8, 16}).mul(0.01 * name[0]);
    parameters.emplace_back(name, value.set_requires_grad(true));
  }
  return parameters;
}

void set_gradients(const NamedTensors& parameters, int step) {
  for (const auto& [name, parameter] : parameters) {
    parameter.mutable_grad() =
        parameter.detach().mul(3.0 + name[0]).add(0.3 * step).sin().contiguous();
  }
}

class EachOptimizerTest : public ::testing::TestWithParam<const char*> {};

TEST_P(EachOptimizerTest, SparseGradientsAreRefusedByName) {
  const at::Tensor weight = at::ones({4, 4}).set_requires_grad(true);
  const auto optimizer = make(GetParam(), {{"embedding.weight", weight}});
  weight.mutable_grad() = at::ones({4, 4}).to_sparse();
  EXPECT_THAT(message_of<ValueError>([&] { optimizer->step(); }),
              AllOf(HasSubstr("'embedding.weight'"), HasSubstr("Sparse")));
}

TEST_P(EachOptimizerTest, ComplexParametersAreRefusedByName) {
  const at::Tensor weight = at::ones({2, 2}, at::kComplexFloat).set_requires_grad(true);
  EXPECT_THAT(message_of<ValueError>([&] {
                make(GetParam(), {{"phase", weight}});
              }),
              AllOf(HasSubstr("'phase'"), HasSubstr("ComplexFloat")));
}

TEST_P(EachOptimizerTest, LearningRatesOutOfRangeAreRefusedByName) {
  const auto optimizer = make(GetParam(), matrices());
  EXPECT_THAT(message_of<ValueError>([&] { optimizer->set_lr(0, -1); }),
              HasSubstr("lr: got -1, expected a finite number of at least 0"));
}

TEST_P(EachOptimizerTest, AStepWithAClosureIsAStepAfterIt) {
  const NamedTensors plain = matrices(), closed = matrices();
  const auto first = make(GetParam(), plain), second = make(GetParam(), closed);
  for (int step = 0; step < 3; ++step) {
    set_gradients(plain, step);
    first->step();
    const at::Tensor loss = second->step([&] {
      EXPECT_TRUE(at::GradMode::is_enabled());
      set_gradients(closed, step);
      return at::full({}, 7.0);
    });
    EXPECT_EQ(loss.item<float>(), 7.0F);
  }
  EXPECT_TRUE(at::equal(plain[0].second, closed[0].second));
  EXPECT_FALSE(at::equal(plain[0].second, matrices()[0].second));
}

TEST_P(EachOptimizerTest, BfloatParametersKeepTheirType) {
  const NamedTensors parameters = matrices(at::kBFloat16);
  const auto optimizer = make(GetParam(), parameters);
  for (int step = 0; step < 3; ++step) {
    set_gradients(parameters, step);
    optimizer->step();
  }
  EXPECT_EQ(parameters[0].second.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(parameters[0].second.isfinite().all().item<bool>());
}

/// Counts allocations of CPU memory of at least so many bytes, while it lives.
class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(size_t least) : least_(least), before_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this, /*priority=*/100);
  }
  ~CountingAllocator() override { c10::SetCPUAllocator(before_, /*priority=*/100); }
  c10::DataPtr allocate(size_t size) override {
    if (size >= least_) ++count;
    return before_->allocate(size);
  }
  c10::DeleterFnPtr raw_deleter() const override { return before_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t size) const override {
    before_->copy_data(to, from, size);
  }
  std::atomic<int> count = 0;

 private:
  size_t least_;
  c10::Allocator* before_;
};

/// All but Rprop, which makes masks, and Muon, which makes matrices.
class MemoryTest : public ::testing::TestWithParam<const char*> {};

TEST_P(MemoryTest, NoneIsTakenAfterTheFirstStep) {
  const std::string name = GetParam();
  for (const char* const implementation : {"auto", "foreach", "single"}) {
    const NamedTensors parameters = matrices();
    const auto optimizer = make(name, parameters, implementation);
    set_gradients(parameters, 0);
    optimizer->step();
    const CountingAllocator allocator(8 * 16 * sizeof(float));
    optimizer->step();
    optimizer->step();
    EXPECT_EQ(allocator.count, 0) << implementation;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EachOptimizerTest,
                         ::testing::Values("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax",
                                           "AdamW", "ASGD", "LAMB", "LARS", "Lion", "Muon", "NAdam",
                                           "RAdam", "RMSprop", "Rprop", "SGD"),
                         [](const auto& name) { return name.param; });

INSTANTIATE_TEST_SUITE_P(All, MemoryTest,
                         ::testing::Values("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax",
                                           "AdamW", "ASGD", "LAMB", "LARS", "Lion", "NAdam",
                                           "RAdam", "RMSprop", "SGD"),
                         [](const auto& name) { return name.param; });

class FusedTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FusedTest, AllImplementationsAgree) {
  std::map<std::string, at::Tensor> results;
  for (const char* const implementation : {"auto", "fused", "foreach", "single"}) {
    const NamedTensors parameters = matrices();
    const auto optimizer = make(GetParam(), parameters, implementation);
    for (int step = 0; step < 10; ++step) {
      set_gradients(parameters, step);
      optimizer->step();
    }
    results[implementation] = parameters[1].second.detach();
  }
  EXPECT_TRUE(at::equal(results["auto"], results["fused"]));
  EXPECT_TRUE(at::equal(results["foreach"], results["single"]));
  EXPECT_LT(results["foreach"].sub(results["fused"]).abs().max().item<double>(), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(All, FusedTest, ::testing::Values("SGD", "Adam", "AdamW", "Adagrad"),
                         [](const auto& name) { return name.param; });

TEST(OptimizersTest, DefaultsArePyTorchs) {
  EXPECT_EQ(AdadeltaOptions().lr, 1.0);
  EXPECT_EQ(AdadeltaOptions().rho, 0.9);
  EXPECT_EQ(AdadeltaOptions().eps, 1e-6);
  EXPECT_EQ(AdafactorOptions().lr, 1e-2);
  EXPECT_EQ(AdafactorOptions().beta2_decay, -0.8);
  EXPECT_EQ(AdagradOptions().lr, 1e-2);
  EXPECT_EQ(AdagradOptions().eps, 1e-10);
  EXPECT_EQ(AdamOptions().lr, 1e-3);
  EXPECT_EQ(AdamOptions().weight_decay, 0);
  EXPECT_EQ(AdamaxOptions().lr, 2e-3);
  EXPECT_EQ(ASGDOptions().t0, 1e6);
  EXPECT_EQ(NAdamOptions().momentum_decay, 4e-3);
  EXPECT_EQ(RMSpropOptions().alpha, 0.99);
  EXPECT_EQ(RpropOptions().etas, (std::array{0.5, 1.2}));
  EXPECT_EQ(MuonOptions().weight_decay, 0.1);
}

TEST(OptimizersTest, AnImplementationThatThereIsNotIsAnErrorThatNamesThoseThereAre) {
  const NamedTensors parameters = matrices();
  EXPECT_THAT(message_of<ValueError>(
                  [&] { Adadelta(parameters, {.implementation = Implementation::fused}); }),
              HasSubstr("Adadelta: implementation: got fused, expected one of auto, foreach, "
                        "single"));
}

TEST(OptimizersTest, OptionsOutOfRangeAreRefusedByName) {
  const NamedTensors one = matrices();
  EXPECT_THAT(message_of<ValueError>([&] { Adadelta(one, {.rho = 1.5}); }), HasSubstr("rho"));
  EXPECT_THAT(message_of<ValueError>([&] { Adafactor(one, {.beta2_decay = 0.1}); }),
              HasSubstr("beta2_decay: got 0.1, expected a finite number of at most 0"));
  EXPECT_THAT(message_of<ValueError>([&] { Adafactor(one, {.d = 0.5}); }), HasSubstr("d: got 0.5"));
  EXPECT_THAT(message_of<ValueError>([&] {
                Rprop(one, {.etas = {1.5, 2.0}});
              }),
              HasSubstr("Rprop: etas: expected the first below 1"));
  EXPECT_THAT(message_of<ValueError>([&] { Muon(one, {.adjust_lr_fn = "none"}); }),
              HasSubstr("adjust_lr_fn: got 'none', expected one of original"));
  EXPECT_THAT(message_of<ValueError>([&] {
                NAdam(one, {.betas = {1.0, 0.9}});
              }),
              HasSubstr("NAdam: betas[0]: got 1"));
}

TEST(OptimizersTest, MuonRefusesWhatIsNoMatrixByName) {
  const NamedTensors parameters{{"fc.bias", at::ones({3}).set_requires_grad(true)}};
  EXPECT_THAT(message_of<ValueError>([&] { Muon muon(parameters); }),
              AllOf(HasSubstr("'fc.bias'"), HasSubstr("two dimensions")));
}

TEST(OptimizersTest, MomentumIsTheFirstBetaOrMomentum) {
  Adam adam(matrices());
  adam.set_momentum(0, 0.7);
  EXPECT_EQ(adam.options(0).betas, (std::array{0.7, 0.999}));
  EXPECT_EQ(adam.momentum(0), 0.7);
  EXPECT_THROW(adam.set_momentum(0, 1.0), ValueError);
  RMSprop rmsprop(matrices());
  rmsprop.set_momentum(0, 0.5);
  EXPECT_EQ(rmsprop.options(0).momentum, 0.5);
  Adagrad adagrad(matrices());
  EXPECT_EQ(adagrad.momentum(0), std::nullopt);
  EXPECT_THROW(adagrad.set_momentum(0, 0.5), ValueError);
}

TEST(OptimizersTest, AdafactorKeepsRowsAndColumnsOfMatricesAlone) {
  const at::Tensor matrix = at::ones({3, 4}).set_requires_grad(true);
  const at::Tensor vector = at::ones({5}).set_requires_grad(true);
  Adafactor adafactor({{"matrix", matrix}, {"vector", vector}});
  matrix.mutable_grad() = at::ones({3, 4});
  vector.mutable_grad() = at::ones({5});
  adafactor.step();
  const Tree state = adafactor.state_dict().at("state");
  EXPECT_THAT(state.at("matrix").at("row_var").tensor().sizes(), ElementsAre(3, 1));
  EXPECT_THAT(state.at("matrix").at("col_var").tensor().sizes(), ElementsAre(1, 4));
  EXPECT_FALSE(state.at("matrix").contains("variance"));
  EXPECT_THAT(state.at("vector").at("variance").tensor().sizes(), ElementsAre(5));
  EXPECT_FALSE(state.at("vector").contains("row_var"));
  Tree damaged = adafactor.state_dict();
  damaged.dict()["state"].dict()["vector"].dict()["row_var"] = at::ones({1});
  EXPECT_THAT(message_of<ValueError>([&] { adafactor.load_state_dict(damaged); }),
              HasSubstr("vector.row_var is unknown here"));
}

}  // namespace
}  // namespace bellows::optim
