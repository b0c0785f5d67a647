#include "bellows/parallel/local_sgd.h"

#include <gmock/gmock.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/parallel/distributed_data_parallel.h"
#include "tests/parallel/support.h"

namespace bellows::parallel {
namespace {

using namespace test;
using testing::HasSubstr;

constexpr double kBound = 1e-12;

NamedTensors train(const Group& group, PostLocalSgdOptions options, int64_t period, int64_t steps) {
  const int64_t start = options.start_local_sgd_iter;
  PostLocalSgd local(std::move(options));
  const nn::Model net = make_net(1);
  DistributedDataParallel ddp(net, group, {.comm_hook = local.hook()});
  const auto optimizer = make_optimizer("plain", net);
  PeriodicModelAverager averager(group, period, start);
  for (int64_t step = 0; step < steps; ++step) {
    optimizer->zero_grad();
    const Batch batch = make_batch(step, 8).part(group.rank(), group.size());
    mean_square(ddp(batch.x), batch.y).backward();
    optimizer->step();
    EXPECT_EQ(averager.average_parameters(net.named_parameters()),
              step >= start && (step - start) % period == 0);
  }
  EXPECT_EQ(local.iteration(), steps);
  return values_of(net);
}

// Plain SGD: averaging parameters after each step is averaging gradients.
TEST(LocalSgdTest, AveragingAfterEveryStepIsDataParallelTraining) {
  std::vector<NamedTensors> got(2), expected(2);
  on_ranks(2, [&](const Group& group) {
    got[group.rank()] = train(group, {.start_local_sgd_iter = 2}, 1, 6);
    expected[group.rank()] = train(group, {.start_local_sgd_iter = 6}, 1, 6);
  });
  EXPECT_LT(distance(got[0], expected[0]), kBound);
  EXPECT_LT(distance(got[1], expected[1]), kBound);
}

TEST(LocalSgdTest, RanksDifferBetweenAveragesAndAgreeAfterOne) {
  std::vector<NamedTensors> apart(2), together(2);
  on_ranks(2, [&](const Group& group) {
    apart[group.rank()] = train(group, {.start_local_sgd_iter = 2}, 3, 5);
    together[group.rank()] = train(group, {.start_local_sgd_iter = 2}, 3, 6);
  });
  EXPECT_GT(distance(apart[0], apart[1]), 1e-6);
  EXPECT_EQ(distance(together[0], together[1]), 0);
}

TEST(LocalSgdTest, ASubgroupKeepsItsRanksTogether) {
  std::vector<NamedTensors> got(4);
  on_ranks(4, [&](const Group& group) {
    std::optional<Group> own;
    for (int64_t first : {0, 2}) {
      auto pair = group.subgroup({first, first + 1}, "pair " + std::to_string(first));
      if (pair) own = pair;
    }
    got[group.rank()] = train(group, {.start_local_sgd_iter = 1, .subgroup = own}, 100, 4);
  });
  EXPECT_EQ(distance(got[0], got[1]), 0);
  EXPECT_EQ(distance(got[2], got[3]), 0);
  EXPECT_GT(distance(got[0], got[2]), 1e-6);
}

TEST(LocalSgdTest, CountsAreKeptInTheState) {
  PeriodicModelAverager one(Group(), 2), two(Group(), 2);
  EXPECT_TRUE(one.average_parameters({}));
  two.load_state_dict(one.state_dict());
  EXPECT_FALSE(two.average_parameters({}));
  EXPECT_THAT(message_of([] { PeriodicModelAverager(Group(), 0); }), HasSubstr("period: got 0"));
}

}  // namespace
}  // namespace bellows::parallel
