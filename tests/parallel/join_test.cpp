#include "bellows/parallel/join.h"

#include <algorithm>
#include <chrono>
#include <gmock/gmock.h>
#include <optional>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/parallel/support.h"

namespace bellows::parallel {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;

constexpr double kBound = 1e-12;
constexpr int64_t kRows = 4;

// The batch of one rank in one step: none where the rank has run out.
struct Uneven {
  std::vector<int64_t> steps;  // by rank
  int64_t longest() const { return *std::max_element(steps.begin(), steps.end()); }
  Batch batch(int64_t step, int64_t rank) const { return make_batch(10 * step + rank, kRows); }
  int64_t active(int64_t step) const {
    return std::count_if(steps.begin(), steps.end(), [&](int64_t n) { return n > step; });
  }
};

// What the ranks together compute, in one process: the mean over all ranks, or over active ones.
NamedTensors alone(const Uneven& uneven, bool by_all) {
  const nn::Model net = make_net(1);
  const auto optimizer = make_optimizer("plain", net);
  for (int64_t step = 0; step < uneven.longest(); ++step) {
    optimizer->zero_grad();
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (size_t rank = 0; rank < uneven.steps.size(); ++rank)
      if (uneven.steps[rank] > step) {
        const Batch batch = uneven.batch(step, static_cast<int64_t>(rank));
        sum = sum + mean_square(net.forward(batch.x), batch.y);
      }
    const auto divisor = by_all ? static_cast<int64_t>(uneven.steps.size()) : uneven.active(step);
    sum.div(divisor).backward();
    optimizer->step();
  }
  return values_of(net);
}

NamedTensors together(const Group& group, const Uneven& uneven, const DdpOptions& ddp_options,
                      const JoinOptions& options) {
  const nn::Model net = make_net(1);
  DistributedDataParallel ddp(net, group, ddp_options);
  const auto optimizer = make_optimizer("plain", net);
  join(
      ddp,
      [&] {
        for (int64_t step = 0; step < uneven.steps[group.rank()]; ++step) {
          optimizer->zero_grad();
          const Batch batch = uneven.batch(step, group.rank());
          mean_square(ddp(batch.x), batch.y).backward();
          optimizer->step();
        }
      },
      options);
  return values_of(net);
}

void check(const Uneven& uneven, const DdpOptions& ddp_options, const JoinOptions& options) {
  const auto ranks = static_cast<int64_t>(uneven.steps.size());
  std::vector<NamedTensors> got(ranks);
  on_ranks(ranks, [&](const Group& group) {
    got[group.rank()] = together(group, uneven, ddp_options, options);
  });
  const NamedTensors expected = alone(uneven, options.divide_by_initial_world_size);
  for (const auto& values : got) EXPECT_LT(distance(values, expected), kBound);
}

TEST(JoinTest, RanksWithFiveAndThreeBatchesEndWithTheSameWeights) {
  check({{5, 3}}, {}, {});
  check({{3, 5}}, {.bucket_cap_mb = 1e-4}, {});
}
TEST(JoinTest, ARankMayHaveNoBatchAtAll) {
  check({{0, 2, 4}}, {}, {});
}
TEST(JoinTest, UnusedParametersMayBeSearchedMeanwhile) {
  check({{4, 2, 1}}, {.find_unused_parameters = true}, {});
}
TEST(JoinTest, TheMeanMayBeOfTheRanksThatHaveData) {
  check({{5, 3, 3}}, {}, {.divide_by_initial_world_size = false});
}
TEST(JoinTest, EvenLoopsAreAsWithout) {
  check({{3, 3}}, {}, {});
  check({{3, 3}}, {}, {.enable = false});
  check({{3}}, {}, {});
}

TEST(JoinTest, BuffersAreThoseOfARankThatIsStillThere) {
  on_ranks(2, [](const Group& group) {
    const at::Tensor w = parameter({kOut, kIn}, 1), buffer = at::zeros({1}, at::kDouble);
    const nn::Model net = nn::from_function(
        [=](const Tree& x) -> Tree {
          buffer.add_(1);
          return at::linear(x.tensor(), w);
        },
        {{"w", w}}, {{"buffer", buffer}});
    DistributedDataParallel ddp(net, group);
    join(ddp, [&] {
      for (int64_t step = 0; step < (group.rank() == 0 ? 2 : 6); ++step)
        ddp(make_batch(step, kRows).x).tensor().sum().backward();
    });
    EXPECT_EQ(buffer.item<double>(), 6);
  });
}

TEST(JoinTest, AccumulationIsSeenByTheRankThatHasEnded) {
  on_ranks(2, [](const Group& group) {
    const nn::Model net = make_net(1), reference = make_net(1);
    DistributedDataParallel ddp(net, group);
    join(ddp, [&] {
      if (group.rank() == 1) return;
      for (const bool last : {false, true}) {
        std::optional<DdpCore::NoSync> no_sync;
        if (!last) no_sync.emplace(ddp.state());
        const Batch batch = make_batch(last, kRows);
        mean_square(ddp(batch.x), batch.y).backward();
        mean_square(reference.forward(batch.x), batch.y).div(2).backward();
      }
      EXPECT_LT(distance(gradients_of(net), gradients_of(reference)), kBound);
    });
  });
}

TEST(JoinTest, EarlyTerminationThrowsOnAllRanksAndNamesTheFirstToEnd) {
  std::vector<std::string> texts(3);
  on_ranks(3, [&](const Group& group) {
    texts[group.rank()] = message_of([&] {
      together(group, {{5, 3, 4}}, {}, {.throw_on_early_termination = true});
    });
  });
  for (const auto& text : texts) EXPECT_THAT(text, HasSubstr("rank 1 has run out of data"));
}

TEST(JoinTest, WithoutJoinTheErrorNamesTheRankThatHasLeft) {
  std::string text;
  std::vector<int64_t> ranks;
  const auto start = std::chrono::steady_clock::now();
  on_ranks(
      2,
      [&](Group group) {
        if (group.rank() == 1) {
          together(group, {{5, 3}}, {}, {.enable = false});
          group.close();
          return;
        }
        try {
          together(group, {{5, 3}}, {}, {.enable = false});
        } catch (const RankError& error) {
          text = error.what();
          ranks = error.ranks();
        }
      },
      std::chrono::seconds(3));
  EXPECT_THAT(text, AllOf(HasSubstr("rank 1"), HasSubstr("first.weight")));
  EXPECT_THAT(ranks, testing::ElementsAre(1));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(JoinTest, WhatTheBodyThrowsIsRethrownAtOnce) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel ddp(make_net(1), group);
    EXPECT_THAT(message_of([&] { join(ddp, [] { throw Error("stop"); }); }), HasSubstr("stop"));
  });
}

}  // namespace
}  // namespace bellows::parallel
