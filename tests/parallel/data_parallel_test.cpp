#include "bellows/parallel/data_parallel.h"

#include <gmock/gmock.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/script.h>

#include "bellows/device/sim.h"
#include "bellows/nn/from_module.h"
#include "bellows/nn/from_torchscript.h"
#include "tests/parallel/support.h"

namespace bellows::parallel {
namespace {

using namespace test;
using testing::HasSubstr;

constexpr double kBound = 1e-12;

c10::Device sim_device(int index) {
  sim::enable({.devices = 3});
  return sim::device(index);
}

torch::nn::Sequential make_module() {
  torch::nn::Sequential net(torch::nn::Linear(kIn, 4), torch::nn::Tanh(),
                            torch::nn::Linear(4, kOut));
  net->to(at::kDouble);
  const at::NoGradGuard no_grad;
  int64_t seed = 0;
  for (const auto& tensor : net->parameters()) tensor.copy_(numbers(tensor.sizes().vec(), ++seed));
  return net;
}

double gap(const at::Tensor& a, const at::Tensor& b) {
  return (a.cpu() - b.cpu()).abs().max().item<double>();
}

class DataParallelTest : public testing::Test {
 protected:
  const c10::Device sim0_ = sim_device(0), sim1_ = sim_device(1), sim2_ = sim_device(2);
  const std::vector<c10::Device> all_{sim0_, sim1_, sim2_};
};

TEST_F(DataParallelTest, TrainsAsOneDeviceDoesWithReplicasMadeOnce) {
  for (const char* name : {"sgd", "adamw"}) {
    const nn::Model alone = nn::from_module(make_module());
    const auto other = make_optimizer(name, alone);
    int replicas = 0;
    const auto factory = [&] {
      ++replicas;
      return nn::from_module(make_module());
    };
    DataParallel parallel(nn::from_module(make_module()), all_, factory);
    const nn::Model model = parallel.model();
    const auto optimizer = make_optimizer(name, model);
    for (int64_t step = 0; step < 20; ++step) {
      const Batch batch = make_batch(step, step % 2 ? 7 : 2);  // uneven; fewer rows than devices
      optimizer->zero_grad();
      other->zero_grad();
      mean_square(parallel(batch.x), batch.y.to(sim0_)).backward();
      mean_square(alone.forward(batch.x), batch.y).backward();
      optimizer->step();
      other->step();
    }
    EXPECT_EQ(replicas, 2);
    const auto got = values_of(model), expected = values_of(alone);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LT(gap(got[i].second, expected[i].second), kBound) << got[i].first;
  }
}

TEST_F(DataParallelTest, ModulesAreCopiedWithoutAFactory) {
  DataParallel parallel(nn::from_module(make_module()), all_);
  const Batch batch = make_batch(0, 5);
  const at::Tensor out = parallel(batch.x).tensor();
  EXPECT_EQ(out.device(), sim0_);
  EXPECT_LT(gap(out, make_module()->forward(batch.x)), kBound);
}

TEST_F(DataParallelTest, GradientsAccumulateAndTheReplicasKeepNone) {
  DataParallel parallel(nn::from_module(make_module()), all_);
  const nn::Model alone = nn::from_module(make_module());
  for (int64_t step = 0; step < 3; ++step) {
    const Batch batch = make_batch(step, 6);
    mean_square(parallel(batch.x), batch.y.to(sim0_)).backward();
    mean_square(alone.forward(batch.x), batch.y).backward();
  }
  const auto got = parallel.model().named_parameters(), expected = alone.named_parameters();
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_LT(gap(got[i].second.grad(), expected[i].second.grad()), kBound);
}

TEST_F(DataParallelTest, AGradientPenaltyOnTheInputWorks) {
  const auto penalty = [](const at::Tensor& x, const at::Tensor& out) {
    const at::Tensor gradient =
        torch::autograd::grad({out.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
    return gradient.square().sum();
  };
  DataParallel parallel(nn::from_module(make_module()), all_);
  const nn::Model alone = nn::from_module(make_module());
  const at::Tensor x = make_batch(0, 6).x.requires_grad_(), y = make_batch(0, 6).x.requires_grad_();
  penalty(x, parallel(x).tensor()).backward();
  penalty(y, alone.forward(y).tensor()).backward();
  EXPECT_LT(gap(x.grad(), y.grad()), kBound);
  EXPECT_LT(gap(parallel.model().named_parameters()[0].second.grad(),
                alone.named_parameters()[0].second.grad()),
            kBound);
}

TEST_F(DataParallelTest, RunningStatisticsAreTheFirstReplicas) {
  const auto make = [] {
    torch::nn::Sequential net((torch::nn::BatchNorm1d(kIn)));
    net->to(at::kDouble);
    return net;
  };
  auto net = make(), first = make();
  DataParallel parallel(nn::from_module(net), {sim0_, sim1_});
  for (int64_t step = 0; step < 3; ++step) {
    const at::Tensor x = make_batch(step, 8).x;
    parallel(x);
    first->forward(x.narrow(0, 0, 4));
  }
  EXPECT_LT(gap(net->named_buffers()["0.running_mean"], first->named_buffers()["0.running_mean"]),
            kBound);
  parallel.model().eval();
  first->eval();
  const at::Tensor x = make_batch(9, 8).x;
  EXPECT_LT(gap(parallel(x).tensor(), first->forward(x)), kBound);
}

TEST_F(DataParallelTest, TorchScriptModulesWithTwoInputsAndATuple) {
  torch::jit::Module module("m");
  module.register_parameter("weight", parameter({kOut, kIn}, 1), false);
  module.define(R"(
def forward(self, x, y):
    out = torch.linear(x, self.weight) - y
    return out, out.sum()
)");
  DataParallel parallel(nn::from_torchscript(module), {sim0_, sim1_});
  const Batch batch = make_batch(0, 5);
  const Tree out = parallel(Tree::List{batch.x, batch.y});
  EXPECT_EQ(out[0].tensor().sizes(), (std::vector<int64_t>{5, kOut}));
  EXPECT_EQ(out[1].tensor().sizes(), std::vector<int64_t>{2}) << "0-dim outputs become a vector";
  const at::Tensor expected = batch.x.matmul(parameter({kOut, kIn}, 1).t()) - batch.y;
  EXPECT_LT(gap(out[0].tensor(), expected), kBound);
}

TEST_F(DataParallelTest, TreesAreScatteredAndGathered) {
  const Tree batch = Tree::Dict{{"x", numbers({5, 2}, 1)},
                                {"list", Tree::List{numbers({5}, 2), 3, "word"}},
                                {"scale", numbers({}, 3)}};
  const auto parts = scatter(batch, all_);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].at("x").tensor().size(0), 2);
  EXPECT_EQ(parts[2].at("x").tensor().size(0), 1);
  EXPECT_EQ(parts[2].at("x").tensor().device(), sim2_);
  EXPECT_EQ(parts[1].at("list")[2].string(), "word");
  const Tree back = gather(parts, c10::kCPU);
  EXPECT_TRUE(at::equal(back.at("x").tensor(), batch.at("x").tensor()));
  EXPECT_EQ(back.at("scale").tensor().dim(), 1);
  EXPECT_THAT(message_of([&] {
                scatter(Tree::Dict{{"a", numbers({4}, 1)}, {"b", numbers({5}, 1)}}, all_);
              }),
              HasSubstr("tensor 'a' of the batch has 4 rows, tensor 'b' has 5"));
}

TEST_F(DataParallelTest, AReplicasErrorReachesTheCaller) {
  const at::Tensor w = parameter({kOut, kIn}, 1);
  const auto make = [](const at::Tensor& weight) {
    return nn::from_function(
        [weight](const Tree& x) -> Tree {
          if (x.tensor().size(0) == 1) throw Error("a part of one row");
          return x.tensor().matmul(weight.t());
        },
        {{"w", weight}});
  };
  DataParallel parallel(make(w), all_, [&] { return make(parameter({kOut, kIn}, 1)); });
  EXPECT_THAT(message_of([&] { parallel(numbers({7, kIn}, 1)); }), HasSubstr("a part of one row"));
  EXPECT_EQ(parallel(numbers({6, kIn}, 1)).tensor().size(0), 6);
}

TEST_F(DataParallelTest, DevicesThatCannotBeAreRefused) {
  const nn::Model model = nn::from_module(make_module());
  EXPECT_THAT(message_of([&] {
                DataParallel(model, {sim0_, sim1_, sim0_});
              }),
              HasSubstr("got sim:0 twice"));
  EXPECT_THAT(message_of([&] { DataParallel(model, {}); }), HasSubstr("got no devices"));
  EXPECT_THAT(message_of([&] {
                DataParallel(model, {sim0_, c10::kCPU});
              }),
              HasSubstr("devices of one kind"));
}

}  // namespace
}  // namespace bellows::parallel
