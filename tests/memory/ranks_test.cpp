// Recomputation under DistributedDataParallel: each parameter is reduced once.
#include <gmock/gmock.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include "bellows/core/error.h"
#include "bellows/memory/batch_size.h"
#include "bellows/memory/checkpoint.h"
#include "bellows/nn/model.h"
#include "bellows/parallel/distributed_data_parallel.h"
#include "bellows/parallel/init.h"

namespace bellows::memory {
namespace {

using parallel::DdpOptions;
using parallel::Group;

at::Tensor weight(uint64_t seed) {
  return at::randn({8, 8}, at::detail::createCPUGenerator(seed), at::kDouble).requires_grad_();
}

at::Tensor input(int64_t rank) {
  return at::randn({4, 8}, at::detail::createCPUGenerator(100 + static_cast<uint64_t>(rank)),
                   at::kDouble);
}

// A trunk that is used twice, and two heads.
struct Net {
  at::Tensor trunk = weight(1), first = weight(2), second = weight(3), unused = weight(4);

  nn::Model model(bool recompute, bool with_unused) const {
    const auto block = [trunk = trunk](const at::Tensor& x) {
      return at::tanh(at::linear(x, trunk)).sin();
    };
    const auto run = [=](const at::Tensor& x) {
      return recompute ? checkpoint(block, x) : block(x);
    };
    NamedTensors parameters{{"trunk", trunk}, {"first", first}, {"second", second}};
    if (with_unused) parameters.emplace_back("unused", unused);
    return nn::from_function(
        [=, first = first, second = second](const Tree& in) -> Tree {
          const at::Tensor x = run(run(in.tensor()));
          return Tree::List{at::linear(x, first), at::linear(x, second)};
        },
        parameters);
  }
};

std::vector<at::Tensor> gradients(const Group& group, bool recompute, bool find_unused,
                                  int backwards) {
  const Net net;
  const nn::Model model = net.model(recompute, find_unused);
  parallel::DistributedDataParallel ddp(model, group,
                                        DdpOptions{.find_unused_parameters = find_unused});
  for (int step = 0; step < 3; ++step) {
    for (const auto& [name, parameter] : model.named_parameters()) parameter.mutable_grad().reset();
    const Tree out = ddp(Tree(input(group.rank())));
    const at::Tensor a = out[0].tensor().square().mean(), b = out[1].tensor().exp().mean();
    if (backwards == 1) {
      (a + b).backward();
    } else {
      a.backward({}, /*retain_graph=*/true);
      b.backward();
    }
  }
  std::vector<at::Tensor> result;
  for (const auto& [name, parameter] : model.named_parameters())
    result.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return result;
}

void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << i;
    if (a[i].defined()) {
      EXPECT_TRUE(at::equal(a[i], b[i])) << i;
    }
  }
}

TEST(CheckpointOnRanks, ASharedTrunkUsedTwiceWithTwoHeadsIsPlainDdp) {
  for (const bool find_unused : {false, true}) {
    parallel::run_threads(2,
                          [&](const Group& group) {
                            const auto plain = gradients(group, false, find_unused, 1);
                            expect_same(plain, gradients(group, true, find_unused, 1));
                            for (const at::Tensor& gradient : plain)  // the same on all ranks
                              if (gradient.defined()) {
                                const at::Tensor all = group.all_gathered(gradient);
                                EXPECT_TRUE(at::equal(all[0], all[1]));
                              }
                          },
                          {.backend = "gloo", .timeout = std::chrono::seconds(30)});
  }
}

// Two backward passes of one forward: what plain DDP does, with recomputation too.
TEST(CheckpointOnRanks, TwoBackwardPassesAreWhatPlainDdpMakesOfThem) {
  parallel::run_threads(2,
                        [](const Group& group) {
                          const auto outcome = [&](bool recompute) -> std::string {
                            try {
                              gradients(group, recompute, false, 2);
                              return "none";
                            } catch (const std::exception& error) {
                              return std::string(error.what()).substr(0, 60);
                            }
                          };
                          EXPECT_EQ(outcome(true), outcome(false));
                        },
                        {.backend = "gloo", .timeout = std::chrono::seconds(30)});
}

TEST(BatchSizeOnRanks, TheSmallestRankDecides) {
  parallel::run_threads(
      2,
      [](const Group& group) {
        const int64_t limit = group.rank() == 0 ? 50 : 21;
        const int64_t found = find_batch_size(
            [&](int64_t size) {
              if (size > limit) throw std::bad_alloc();
            },
            {.agree = [&](bool fits) {
              return group.all_reduced(at::full({}, fits ? 1 : 0), parallel::ReduceOp::min)
                         .item<int>() == 1;
            }});
        EXPECT_EQ(found, 21);
      },
      {.backend = "gloo", .timeout = std::chrono::seconds(30)});
}

}  // namespace
}  // namespace bellows::memory
