#include "bellows/parallel/power_sgd.h"

#include <gmock/gmock.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
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
constexpr int64_t kRows = 12, kColumns = 10;

// A model whose gradients are what the input says: {of the matrix, of the vector}.
struct Given {
  at::Tensor matrix = at::zeros({kRows, kColumns}, at::kDouble).requires_grad_();
  at::Tensor vector = at::zeros({5}, at::kDouble).requires_grad_();
  nn::Model model() const {
    return nn::from_function(
        [m = matrix, v = vector](const Tree& x) -> Tree {
          return (m * x[0].tensor()).sum() + (v * x[1].tensor()).sum();
        },
        {{"matrix", matrix}, {"vector", vector}});
  }
  void pass(DdpCore& ddp, const at::Tensor& m, const at::Tensor& v) const {
    matrix.mutable_grad().reset();
    vector.mutable_grad().reset();
    ddp.model().forward(Tree::List{m, v}).tensor().backward();
  }
};

at::Tensor matrix_of(int64_t step, int64_t rank) {
  return numbers({kRows, kColumns}, 10 * step + rank);
}
at::Tensor vector_of(int64_t step, int64_t rank) {
  return numbers({5}, 10 * step + rank);
}

template <class Of>
at::Tensor mean_of(Of of, int64_t step, int64_t ranks) {
  at::Tensor sum = of(step, 0);
  for (int64_t rank = 1; rank < ranks; ++rank) sum = sum + of(step, rank);
  return sum / static_cast<double>(ranks);
}

double gap(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(PowerSgdTest, WhatIsLostComesBack) {
  constexpr int64_t kRanks = 3, kSteps = 8, kStart = 2;
  std::vector<at::Tensor> errors(kRanks);
  at::Tensor applied, wanted = at::zeros({kRows, kColumns}, at::kDouble);
  for (int64_t step = 0; step < kSteps; ++step) wanted += mean_of(matrix_of, step, kRanks);
  on_ranks(kRanks, [&](const Group& group) {
    PowerSgd power({.start_power_sgd_iter = kStart});
    const Given given;
    DistributedDataParallel ddp(given.model(), group, {.comm_hook = power.hook()});
    at::Tensor sum = at::zeros({kRows, kColumns}, at::kDouble);
    for (int64_t step = 0; step < kSteps; ++step) {
      given.pass(ddp, matrix_of(step, group.rank()), vector_of(step, group.rank()));
      sum += given.matrix.grad();
      EXPECT_LT(gap(given.vector.grad(), mean_of(vector_of, step, kRanks)), kBound);
      const double off = gap(given.matrix.grad(), mean_of(matrix_of, step, kRanks));
      if (step < kStart)
        EXPECT_LT(off, kBound);
      else
        EXPECT_GT(off, 1e-3) << "nothing was compressed";
    }
    const Tree state = power.state_dict();
    const BucketLayout layout = ddp.bucket_layout();
    ASSERT_EQ(layout.size(), 1U);
    const bool first = layout[0][0] == "matrix";
    errors[group.rank()] = state.at("errors")
                               .at("0")
                               .tensor()
                               .narrow(0, first ? 0 : 5, kRows * kColumns)
                               .view({kRows, kColumns})
                               .clone();
    EXPECT_GT(power.compression_rate(), 2);
    if (group.rank() == 0) applied = sum;
  });
  for (const auto& error : errors) applied = applied + error / static_cast<double>(kRanks);
  EXPECT_LT(gap(applied, wanted), 1e-11);
}

TEST(PowerSgdTest, GradientsOfLowRankAreExact) {
  on_ranks(2, [](const Group& group) {
    PowerSgd power({.matrix_approximation_rank = 2, .start_power_sgd_iter = 2});
    const Given given;
    DistributedDataParallel ddp(given.model(), group, {.comm_hook = power.hook()});
    // A product of two columns on each rank: the mean has rank 2.
    const auto low = [](int64_t step, int64_t rank) {
      return numbers({kRows, 1}, step + rank).mm(numbers({1, kColumns}, 50 + step + rank));
    };
    for (int64_t step = 0; step < 5; ++step) {
      given.pass(ddp, low(step, group.rank()), vector_of(step, 0));
      EXPECT_LT(gap(given.matrix.grad(), mean_of(low, step, 2)), 1e-10) << step;
    }
  });
}

TEST(PowerSgdTest, ARunResumedIsTheUnbrokenOneBitForBit) {
  for (const bool warm : {true, false}) {
    on_ranks(2, [&](const Group& group) {
      const PowerSgdOptions options{.start_power_sgd_iter = 2, .warm_start = warm};
      PowerSgd whole(options);
      const Given unbroken;
      DistributedDataParallel one(unbroken.model(), group, {.comm_hook = whole.hook()});
      PowerSgd first(options), second(options);
      const Given broken;
      const auto pass = [&](const Given& given, DdpCore& ddp, int64_t step) {
        given.pass(ddp, matrix_of(step, group.rank()), vector_of(step, group.rank()));
      };
      Tree power_state, ddp_state;
      for (int64_t step = 0; step < 4; ++step) pass(unbroken, one, step);
      {
        DistributedDataParallel ddp(broken.model(), group, {.comm_hook = first.hook()});
        for (int64_t step = 0; step < 4; ++step) pass(broken, ddp, step);
        power_state = first.state_dict();
        ddp_state = ddp.state_dict();
      }
      DistributedDataParallel two(broken.model(), group, {.comm_hook = second.hook()});
      second.load_state_dict(power_state);
      two.load_state_dict(ddp_state);
      for (int64_t step = 4; step < 8; ++step) {
        pass(unbroken, one, step);
        pass(broken, two, step);
        EXPECT_TRUE(at::equal(unbroken.matrix.grad(), broken.matrix.grad())) << step;
      }
    });
  }
}

TEST(PowerSgdTest, OptionsOutOfRangeAreRefused) {
  EXPECT_THAT(message_of([] { PowerSgd({.start_power_sgd_iter = 1}); }),
              HasSubstr("start_power_sgd_iter: got 1, expected above 1"));
  EXPECT_THAT(message_of([] { PowerSgd({.matrix_approximation_rank = 0}); }),
              HasSubstr("matrix_approximation_rank: got 0"));
  EXPECT_NO_THROW(
      PowerSgd({.start_power_sgd_iter = 0, .use_error_feedback = false, .warm_start = false}));
}

}  // namespace
}  // namespace bellows::parallel
