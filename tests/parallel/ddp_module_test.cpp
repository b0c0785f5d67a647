// DistributedDataParallel over the kinds of modules that there are.
#include <gmock/gmock.h>
#include <map>
#include <optional>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/script.h>

#include "bellows/nn/from_module.h"
#include "bellows/nn/from_torchscript.h"
#include "bellows/parallel/distributed_data_parallel.h"
#include "tests/parallel/support.h"

namespace bellows::parallel {
namespace {

using namespace test;

constexpr double kBound = 1e-12;

void fill(torch::nn::Module& module) {
  module.to(at::kDouble);
  const at::NoGradGuard no_grad;
  int64_t seed = 0;
  for (const auto& tensor : module.parameters())
    tensor.copy_(numbers(tensor.sizes().vec(), ++seed));
}

// A forward that no nn::Model could call, and several kinds of output.
struct OwnImpl : torch::nn::Module {
  OwnImpl() { fill(*this); }
  std::tuple<at::Tensor, std::map<std::string, at::Tensor>> forward(const at::Tensor& x, int times,
                                                                    std::optional<double> factor) {
    at::Tensor out = x;
    for (int i = 0; i < times; ++i) out = torch::tanh(layer(out));
    if (factor) out = out * *factor;
    return {out, {{"unused", other(x)}}};
  }
  int answer() const { return 42; }
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(kIn, kIn));
  torch::nn::Linear other = register_module("other", torch::nn::Linear(kIn, kOut));
};
TORCH_MODULE(Own);

void expect_same_gradients(const torch::nn::Module& got, const torch::nn::Module& expected) {
  for (const auto& item : expected.named_parameters()) {
    const at::Tensor own = got.named_parameters()[item.key()].grad();
    ASSERT_EQ(own.defined(), item.value().grad().defined()) << item.key();
    if (!own.defined()) continue;
    EXPECT_LT((own - item.value().grad()).abs().max().item<double>(), kBound) << item.key();
  }
}

TEST(DdpModuleTest, TheModulesOwnSignatureIsForwarded) {
  on_ranks(2, [](const Group& group) {
    Own net, alone;
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    EXPECT_EQ(ddp->answer(), 42);
    for (int64_t step = 0; step < 3; ++step) {
      net->zero_grad();
      alone->zero_grad();
      const Batch whole = make_batch(step, 8), batch = whole.part(group.rank(), 2);
      auto [out, rest] = ddp(batch.x, 2, std::optional<double>(1.5));
      out.square().mean().backward();
      std::get<0>(alone->forward(whole.x, 2, 1.5)).square().mean().backward();
      expect_same_gradients(*net, *alone);
    }
  });
}

TEST(DdpModuleTest, SequentialsAndPointersWork) {
  on_ranks(3, [](const Group& group) {
    const auto make = [] {
      torch::nn::Sequential net(torch::nn::Linear(kIn, 4), torch::nn::Tanh(),
                                torch::nn::Linear(4, kOut));
      fill(*net);
      return net;
    };
    auto net = make(), alone = make();
    DistributedDataParallel<torch::nn::SequentialImpl> ddp(net.ptr(), group);
    const Batch whole = make_batch(0, 6), batch = whole.part(group.rank(), 3);
    (ddp(batch.x) - batch.y).square().mean().backward();
    (alone->forward(whole.x) - whole.y).square().mean().backward();
    expect_same_gradients(*net, *alone);
  });
}

TEST(DdpModuleTest, TorchScriptModulesWithTwoInputsAndATupleAreTheOneCopy) {
  const auto make = [] {
    torch::jit::Module module("m");
    module.register_parameter("weight", parameter({kOut, kIn}, 1), false);
    module.register_parameter("bias", parameter({kOut}, 2), false);
    module.define(R"(
def forward(self, x, y):
    out = torch.tanh(torch.linear(x, self.weight, self.bias)) - y
    return out, out * 2
)");
    return nn::from_torchscript(module);
  };
  const nn::Model alone = make();
  const auto loss = [](const Tree& out) {
    return out[0].tensor().square().mean() + out[1].tensor().mean();
  };
  const auto optimizer = make_optimizer("adamw", alone);
  for (int64_t step = 0; step < 5; ++step) {
    optimizer->zero_grad();
    const Batch batch = make_batch(step, 8);
    loss(alone.forward(Tree::List{batch.x, batch.y})).backward();
    optimizer->step();
  }
  on_ranks(2, [&](const Group& group) {
    const nn::Model net = make();
    DistributedDataParallel ddp(net, group, {.gradient_as_bucket_view = true});
    const auto own = make_optimizer("adamw", net);
    for (int64_t step = 0; step < 5; ++step) {
      own->zero_grad(false);
      const Batch batch = make_batch(step, 8).part(group.rank(), 2);
      loss(ddp(Tree::List{batch.x, batch.y})).backward();
      own->step();
    }
    EXPECT_LT(distance(values_of(net), values_of(alone)), kBound);
  });
}

TEST(DdpModuleTest, LibTorchsOwnOptimizersTrainItToo) {
  on_ranks(2, [](const Group& group) {
    const auto make = [] {
      torch::nn::Linear net(kIn, kOut);
      fill(*net);
      return net;
    };
    auto net = make(), alone = make();
    DistributedDataParallel ddp(net, group);
    torch::optim::SGD own(net->parameters(), 0.1), other(alone->parameters(), 0.1);
    for (int64_t step = 0; step < 4; ++step) {
      const Batch whole = make_batch(step, 4), batch = whole.part(group.rank(), 2);
      own.zero_grad();
      other.zero_grad();
      (ddp(batch.x) - batch.y).square().mean().backward();
      (alone->forward(whole.x) - whole.y).square().mean().backward();
      own.step();
      other.step();
    }
    EXPECT_LT((net->weight - alone->weight).abs().max().item<double>(), kBound);
  });
}

}  // namespace
}  // namespace bellows::parallel
