#include "bellows/parallel/sync_batch_norm.h"

#include <gmock/gmock.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/script.h>

#include "bellows/core/log.h"
#include "bellows/nn/from_module.h"
#include "bellows/nn/from_torchscript.h"
#include "bellows/parallel/distributed_data_parallel.h"
#include "bellows/parallel/sync_batch_norm_module.h"
#include "tests/parallel/support.h"

namespace bellows::parallel {
namespace {

using namespace test;
using testing::HasSubstr;

constexpr double kBound = 1e-12;
constexpr int64_t kChannels = 3;

// A layer's tensors and what a pass makes of them.
struct Layer {
  at::Tensor weight, bias, mean, variance;
  explicit Layer(bool affine = true) {
    if (affine) {
      weight = parameter({kChannels}, 1);
      bias = parameter({kChannels}, 2);
    }
    mean = numbers({kChannels}, 3);
    variance = numbers({kChannels}, 4).abs();
  }
};

struct Case {
  const char* name;
  std::vector<int64_t> rows;  // by rank
  std::vector<int64_t> tail;  // sizes after N, C
  std::function<at::Tensor(const at::Tensor&)> layout = [](const at::Tensor& x) { return x; };
  bool affine = true;
};

at::Tensor permuted(const at::Tensor& x) {
  return x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
}
at::Tensor channels_last(const at::Tensor& x) {
  return x.contiguous(at::MemoryFormat::ChannelsLast);
}
at::Tensor strided(const at::Tensor& x) {
  return at::cat({x, x}, 2).slice(2, 0, x.size(2) * 2, 2);
}

std::vector<Case> cases() {
  return {{"two dimensions", {4, 4}, {}},
          {"images", {2, 2}, {4, 5}},
          {"channels last", {2, 2}, {4, 5}, channels_last},
          {"permuted", {3, 1}, {4, 5}, permuted},
          {"strided", {2, 3}, {4, 5}, strided},
          {"volumes", {1, 1}, {2, 3, 4}},
          {"uneven", {5, 1, 2}, {3}},
          {"an empty rank", {4, 0, 2}, {3, 3}},
          {"one sample a rank", {1, 1}, {}},
          {"without weights", {2, 2}, {4, 5}, channels_last, false},
          {"four ranks", {1, 2, 3, 4}, {2, 2}}};
}

at::Tensor input_of(const Case& c) {
  std::vector<int64_t> sizes{0, kChannels};
  for (const int64_t rows : c.rows) sizes[0] += rows;
  sizes.insert(sizes.end(), c.tail.begin(), c.tail.end());
  return numbers(sizes, 7) * 2 + 1;
}

at::Tensor rows_of(const at::Tensor& whole, const Case& c, int64_t rank) {
  int64_t start = 0;
  for (int64_t r = 0; r < rank; ++r) start += c.rows[r];
  return whole.narrow(0, start, c.rows[rank]);
}

void expect_near(const at::Tensor& got, const at::Tensor& expected, const char* what) {
  ASSERT_EQ(got.defined(), expected.defined()) << what;
  if (!got.defined() || got.numel() == 0) return;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  EXPECT_LT((got - expected).abs().max().item<double>(), kBound) << what;
}

// Forward and backward on all ranks against BatchNorm on the whole batch.
void check(const Case& c) {
  SCOPED_TRACE(c.name);
  const auto ranks = static_cast<int64_t>(c.rows.size());
  const at::Tensor whole = c.layout(input_of(c)).detach().requires_grad_();
  const at::Tensor weights = numbers(whole.sizes().vec(), 9);
  Layer alone(c.affine);
  const at::Tensor expected = at::batch_norm(whole, alone.weight, alone.bias, alone.mean,
                                             alone.variance, true, 0.3, 1e-3, false);
  (expected * weights).sum().backward();
  std::vector<at::Tensor> weight_parts(ranks), bias_parts(ranks);
  on_ranks(ranks, [&](const Group& group) {
    Layer own(c.affine);
    const at::Tensor x = c.layout(rows_of(input_of(c), c, group.rank())).detach().requires_grad_();
    const at::Tensor out =
        sync_batch_norm(x, own.weight, own.bias, own.mean, own.variance, group, 0.3, 1e-3);
    expect_near(out, rows_of(expected, c, group.rank()), "output");
    if (x.dim() == 4 && x.is_contiguous(at::MemoryFormat::ChannelsLast) && !x.is_contiguous()) {
      EXPECT_TRUE(out.is_contiguous(at::MemoryFormat::ChannelsLast));
    }
    (out * rows_of(weights, c, group.rank())).sum().backward();
    expect_near(x.grad(), rows_of(whole.grad(), c, group.rank()), "gradient of the input");
    expect_near(own.mean, alone.mean, "running mean");
    expect_near(own.variance, alone.variance, "running variance");
    if (!c.affine) return;
    weight_parts[group.rank()] = own.weight.grad();
    bias_parts[group.rank()] = own.bias.grad();
  });
  if (!c.affine) return;
  const auto sum = [](const std::vector<at::Tensor>& parts) {
    at::Tensor out = at::zeros({kChannels}, at::kDouble);
    for (const auto& part : parts) out += part;
    return out;
  };
  expect_near(sum(weight_parts), alone.weight.grad(), "gradient of the weight");
  expect_near(sum(bias_parts), alone.bias.grad(), "gradient of the bias");
}

TEST(SyncBatchNormTest, ForwardAndBackwardAreThoseOfTheWholeBatch) {
  for (const Case& c : cases()) check(c);
}

TEST(SyncBatchNormTest, SixteenBitInputsHaveStatisticsInFloat32) {
  on_ranks(2, [](const Group& group) {
    const at::Tensor x = numbers({8, kChannels, 4}, 1).to(at::kBFloat16);
    const at::Tensor mean = at::zeros({kChannels}), variance = at::ones({kChannels});
    const at::Tensor out =
        sync_batch_norm(x.narrow(0, 4 * group.rank(), 4), {}, {}, mean, variance, group);
    EXPECT_EQ(out.scalar_type(), at::kBFloat16);
    const at::Tensor expected = x.to(at::kFloat).mean(at::IntArrayRef{0, 2}) * 0.1;
    EXPECT_LT((mean - expected).abs().max().item<float>(), 1e-6);
  });
}

TEST(SyncBatchNormTest, OneValueAChannelIsRefusedOnAllRanks) {
  on_ranks(2, [](const Group& group) {
    EXPECT_THAT(message_of([&] {
                  sync_batch_norm(numbers({group.rank(), kChannels}, 1), {}, {}, {}, {}, group);
                }),
                HasSubstr("got 1 values a channel on all 2 ranks"));
    EXPECT_THAT(message_of([&] { sync_batch_norm(numbers({4}, 1), {}, {}, {}, {}, group); }),
                HasSubstr("expected [N, C, …]"));
  });
}

// A user's module, which knows nothing of ranks.
torch::nn::Sequential make_module() {
  torch::nn::Sequential net(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(2, kChannels, 3).padding(1)),
      torch::nn::BatchNorm2d(kChannels), torch::nn::Tanh(),
      torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(kChannels).momentum(std::nullopt)));
  net->to(at::kDouble);
  int64_t seed = 0;
  const at::NoGradGuard no_grad;
  for (const auto& tensor : net->parameters()) tensor.copy_(numbers(tensor.sizes().vec(), ++seed));
  return net;
}

at::Tensor images(int64_t rows) {
  return numbers({rows, 2, 4, 4}, 5);
}

TEST(SyncBatchNormGuardTest, AnUnmodifiedModuleInDdpIsTheOneProcessOnTheWholeBatch) {
  auto alone = make_module();
  const auto loss = [](const at::Tensor& out, int64_t whole_rows) {
    return out.square().mul(numbers({kChannels, 1, 1}, 3)).sum() / static_cast<double>(whole_rows);
  };
  for (int64_t step = 0; step < 2; ++step) {
    alone->zero_grad();
    loss(alone->forward(images(6)), 6).backward();
  }
  on_ranks(3, [&](const Group& group) {
    auto net = make_module();
    DistributedDataParallel ddp(net, group);
    for (int64_t step = 0; step < 2; ++step) {
      net->zero_grad();
      const SyncBatchNormGuard guard(group);
      const at::Tensor out = ddp(images(6).narrow(0, 2 * group.rank(), 2));
      loss(out, 2).backward();
    }
    for (const auto& item : net->named_parameters())
      expect_near(item.value().grad(), alone->named_parameters()[item.key()].grad(),
                  item.key().c_str());
    for (const auto& item : net->named_buffers())
      expect_near(item.value().to(at::kDouble), alone->named_buffers()[item.key()].to(at::kDouble),
                  item.key().c_str());
  });
}

TEST(SyncBatchNormGuardTest, ConvertedModelsKeepNamesValuesAndModeAndEvaluateAlone) {
  on_ranks(2, [](const Group& group) {
    auto net = make_module();
    const nn::Model plain = nn::from_module(net), synced = convert_sync_batch_norm(plain, group);
    EXPECT_EQ(distance(plain.state_dict(), synced.state_dict()), 0);
    synced.eval();
    EXPECT_FALSE(net->is_training());
    if (group.rank() == 0) {  // no collective
      const at::Tensor x = images(3);
      EXPECT_TRUE(at::equal(synced.forward(x).tensor(), plain.forward(x).tensor()));
    }
    synced.train();
    const at::Tensor x = images(4), part = x.narrow(0, 2 * group.rank(), 2);
    const at::Tensor expected = make_module()->forward(x).narrow(0, 2 * group.rank(), 2);
    expect_near(synced.forward(part).tensor(), expected, "output");
    EXPECT_FALSE(SyncBatchNormGuard::active());
  });
}

TEST(SyncBatchNormGuardTest, AGroupOfOneIsPlainBatchNorm) {
  auto net = make_module(), other = make_module();
  const nn::Model synced = convert_sync_batch_norm(nn::from_module(net), Group());
  EXPECT_TRUE(at::equal(synced.forward(images(3)).tensor(), other->forward(images(3))));
}

constexpr const char* kScript = R"(
def forward(self, x):
    return torch.batch_norm(x * 2, self.weight, self.bias, self.mean, self.var, True, 0.1, 1e-5, False).tanh()
)";

TEST(SyncBatchNormGuardTest, TorchScriptModulesAreSeenAtEveryCall) {
  on_ranks(2, [](const Group& group) {
    torch::jit::Module module("m");
    module.register_parameter("weight", parameter({kChannels}, 1), false);
    module.register_parameter("bias", parameter({kChannels}, 2), false);
    module.register_buffer("mean", at::zeros({kChannels}, at::kDouble));
    module.register_buffer("var", at::ones({kChannels}, at::kDouble));
    module.define(kScript);
    const nn::Model synced = convert_sync_batch_norm(nn::from_torchscript(module), group);
    const at::Tensor x = numbers({8, kChannels}, 5);
    const at::Tensor expected =
        at::batch_norm(x * 2, parameter({kChannels}, 1), parameter({kChannels}, 2), {}, {}, true,
                       0.1, 1e-5, false)
            .tanh();
    for (int call = 0; call < 4; ++call) {
      const at::Tensor out = synced.forward(x.narrow(0, 4 * group.rank(), 4)).tensor();
      expect_near(out, expected.narrow(0, 4 * group.rank(), 4), "output");
      out.sum().backward();
    }
  });
}

TEST(SyncBatchNormModuleTest, IsBatchNormOfTheWholeBatchWithItsNames) {
  on_ranks(2, [](const Group& group) {
    for (const std::optional<double> momentum : {std::optional(0.2), std::optional<double>()}) {
      SyncBatchNorm net(kChannels, group, SyncBatchNormOptions{.momentum = momentum});
      torch::nn::BatchNorm2d alone(torch::nn::BatchNorm2dOptions(kChannels).momentum(momentum));
      net->to(at::kDouble);
      alone->to(at::kDouble);
      for (int64_t step = 0; step < 2; ++step) {
        const at::Tensor x = numbers({6, kChannels, 2, 2}, step);
        expect_near(net->forward(x.narrow(0, 3 * group.rank(), 3)),
                    alone->forward(x).narrow(0, 3 * group.rank(), 3), "output");
      }
      net->eval();
      alone->eval();
      const at::Tensor x = numbers({2, kChannels, 2, 2}, 9);
      expect_near(net->forward(x), alone->forward(x), "output in evaluation mode");
      const auto own = nn::state_dict(net), expected = nn::state_dict(alone);
      ASSERT_EQ(own.size(), expected.size());
      for (size_t i = 0; i < own.size(); ++i) {
        EXPECT_EQ(own[i].first, expected[i].first);
        expect_near(own[i].second.to(at::kDouble), expected[i].second.to(at::kDouble),
                    own[i].first.c_str());
      }
    }
  });
}

TEST(SyncBatchNormGuardTest, BatchNormOnFewSamplesInDdpIsWarnedOfOnce) {
  testing::internal::CaptureStderr();
  on_ranks(2, [](const Group& group) {
    for (int model = 0; model < 2; ++model) {
      DistributedDataParallel ddp(make_module(), group);
      ddp(images(2)).sum().backward();
      ddp(images(2)).sum().backward();
    }
  });
  const std::string text = testing::internal::GetCapturedStderr();
  const size_t first =
      text.find("BatchNorm takes its statistics from 2 samples on each of 2 ranks");
  static bool warned = false;  // this test may run twice in a process
  EXPECT_EQ(first != std::string::npos, !warned) << text;
  warned = true;
  EXPECT_EQ(text.find("BatchNorm takes", first == std::string::npos ? 0 : first + 1),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace bellows::parallel
