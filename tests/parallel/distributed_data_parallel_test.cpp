#include "bellows/parallel/distributed_data_parallel.h"

#include <algorithm>
#include <chrono>
#include <gmock/gmock.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/data/distributed_sampler.h"
#include "bellows/data/loader.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/train/trainer.h"
#include "tests/parallel/support.h"

namespace bellows::parallel {
namespace {

using namespace test;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr double kBound = 1e-12;
constexpr double kSmallBuckets = 200.0 / (1 << 20);  // of a few tensors each

// What each rank is left with.
template <class T>
using PerRank = std::vector<T>;

struct Law {
  int64_t ranks;
  const char* optimizer;
  bool view;
  bool small;
};

std::string name_of(const testing::TestParamInfo<Law>& info) {
  const Law& law = info.param;
  return std::to_string(law.ranks) + "_" + law.optimizer + (law.view ? "_view" : "") +
         (law.small ? "_small" : "");
}

DdpOptions options_of(const Law& law) {
  DdpOptions options{.gradient_as_bucket_view = law.view};
  if (law.small) options.bucket_cap_mb = kSmallBuckets;
  return options;
}

// `micro` micro-batches a step, of 12 rows each (which 1, 2, 3 and 4 ranks share evenly).
constexpr int64_t kSteps = 6, kRows = 12;

NamedTensors train_alone(const char* optimizer_name, int64_t micro) {
  const nn::Model net = make_net(1);
  const auto optimizer = make_optimizer(optimizer_name, net);
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    for (int64_t i = 0; i < micro; ++i) {
      const Batch batch = make_batch(step * micro + i, kRows);
      mean_square(net.forward(batch.x), batch.y).backward();
    }
    optimizer->step();
  }
  return values_of(net);
}

NamedTensors train_together(const Group& group, const Law& law, int64_t micro) {
  const nn::Model net = make_net(1 + group.rank());  // rank 0's counts
  DistributedDataParallel ddp(net, group, options_of(law));
  const auto optimizer = make_optimizer(law.optimizer, net);
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer->zero_grad(!law.view);
    const auto backward = [&](int64_t i) {
      const Batch batch = make_batch(step * micro + i, kRows).part(group.rank(), group.size());
      mean_square(ddp(batch.x), batch.y).backward();
    };
    {
      const auto no_sync = ddp.no_sync();
      for (int64_t i = 0; i + 1 < micro; ++i) backward(i);
    }
    backward(micro - 1);
    optimizer->step();
  }
  return values_of(net);
}

class DdpLaw : public testing::TestWithParam<Law> {
 protected:
  void check(int64_t micro) {
    const NamedTensors expected = train_alone(GetParam().optimizer, micro);
    PerRank<NamedTensors> got(GetParam().ranks);
    on_ranks(GetParam().ranks, [&](const Group& group) {
      got[group.rank()] = train_together(group, GetParam(), micro);
    });
    for (const auto& values : got) {
      EXPECT_LT(distance(values, expected), kBound);
      EXPECT_EQ(distance(values, got[0]), 0) << "ranks drift apart";
    }
  }
};

TEST_P(DdpLaw, EqualsOneProcessOnTheJoinedBatch) {
  check(1);
}
TEST_P(DdpLaw, EqualsOneProcessWithAccumulatedGradients) {
  check(3);
}

INSTANTIATE_TEST_SUITE_P(Ranks, DdpLaw,
                         testing::Values(Law{1, "sgd", false, false}, Law{2, "sgd", false, false},
                                         Law{2, "adamw", true, false}, Law{2, "sgd", true, true},
                                         Law{3, "adamw", false, true}, Law{3, "sgd", true, false},
                                         Law{4, "sgd", false, true}, Law{4, "adamw", true, true}),
                         name_of);

// A trunk and two heads; the input says which heads are used: {x, left, right}. Output: a list.
nn::Model make_heads() {
  const at::Tensor trunk = parameter({4, kIn}, 1), left = parameter({kOut, 4}, 2),
                   right = parameter({kOut, 4}, 3);
  return nn::from_function(
      [=](const Tree& input) -> Tree {
        const at::Tensor hidden = at::tanh(at::linear(input[0].tensor(), trunk));
        Tree::List out;
        if (input[1].boolean()) out.emplace_back(at::linear(hidden, left));
        if (input[2].boolean()) out.emplace_back(at::linear(hidden, right));
        return out;
      },
      {{"trunk.weight", trunk}, {"left.weight", left}, {"right.weight", right}});
}

Tree heads_input(const at::Tensor& x, bool left, bool right) {
  return Tree::List{x, left, right};
}

at::Tensor gradient_of(const nn::Model& model, const std::string& name) {
  for (const auto& [own, tensor] : model.named_parameters())
    if (own == name) return tensor.grad();
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

at::Tensor all_squares(const Tree& output) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  output.for_each_tensor(
      [&](const std::string&, const at::Tensor& tensor) { sum = sum + tensor.square().mean(); });
  return sum;
}

at::Tensor rank_input(const Group& group, int64_t step = 0) {
  return make_batch(step, 4 * group.size()).part(group.rank(), group.size()).x;
}

TEST(DdpTest, RanksStartWithRank0sParametersAndBuffers) {
  on_ranks(3, [](const Group& group) {
    const at::Tensor w = parameter({2, 3}, 10 + group.rank());
    const at::Tensor frozen = numbers({4}, 20 + group.rank(), at::kFloat);
    const at::Tensor counter = at::full({}, group.rank(), at::kLong);
    const nn::Model net = nn::from_function([](const Tree& x) { return x; },
                                            {{"w", w}, {"frozen", frozen}}, {{"counter", counter}});
    const DistributedDataParallel ddp(net, group);
    EXPECT_TRUE(at::equal(w, parameter({2, 3}, 10)));
    EXPECT_TRUE(at::equal(frozen, numbers({4}, 20, at::kFloat)));
    EXPECT_EQ(counter.item<int64_t>(), 0);
    EXPECT_TRUE(w.requires_grad());
  });
}

TEST(DdpTest, BuffersFollowRank0BeforeEachForwardAfterAReducedOne) {
  on_ranks(2, [](const Group& group) {
    const at::Tensor w = parameter({kOut, kIn}, 1), buffer = at::zeros({2}, at::kDouble);
    const nn::Model net = nn::from_function(
        [=](const Tree& x) -> Tree {
          buffer.add_(1.0 + static_cast<double>(group.rank()));
          return at::linear(x.tensor(), w);
        },
        {{"w", w}}, {{"buffer", buffer}});
    DistributedDataParallel ddp(net, group);
    const auto pass = [&] { ddp(rank_input(group)).tensor().sum().backward(); };
    pass();
    EXPECT_EQ(buffer[0].item<double>(), 1.0 + static_cast<double>(group.rank()));
    pass();
    EXPECT_EQ(buffer[0].item<double>(), 2.0 + static_cast<double>(group.rank()));
    {
      const auto no_sync = ddp.no_sync();
      pass();
      pass();  // as in PyTorch, the pass after one without reduction does not
    }
    EXPECT_EQ(buffer[0].item<double>(), 4.0 + 2 * static_cast<double>(group.rank()));
  });
}

TEST(DdpTest, UnusedParametersAreNamedAtTheEndOfTheBackwardPass) {
  on_ranks(2, [](const Group& group) {
    const nn::Model net = make_heads();
    DistributedDataParallel ddp(net, group);
    const at::Tensor x = rank_input(group);
    all_squares(ddp(heads_input(x, true, true))).backward();
    at::Tensor loss = all_squares(ddp(heads_input(x, true, false)));
    const std::string text = message_of([&] { loss.backward(); });
    EXPECT_THAT(text, AllOf(HasSubstr("right.weight"), HasSubstr("iteration 2"),
                            HasSubstr("rank " + std::to_string(group.rank())),
                            HasSubstr("find_unused_parameters = true")));
    EXPECT_THAT(text, testing::Not(HasSubstr("left.weight")));
  });
}

TEST(DdpTest, AParameterThatOneRankLeavesUnusedEndsTheOtherRankTooWithTheBucketsNames) {
  PerRank<std::string> texts(2);
  on_ranks(
      2,
      [&](const Group& group) {
        DistributedDataParallel ddp(make_heads(), group);
        const at::Tensor loss =
            all_squares(ddp(heads_input(rank_input(group), true, group.rank() == 1)));
        texts[group.rank()] = message_of([&] { loss.backward(); });
        group.close();
      },
      std::chrono::seconds(3));
  EXPECT_THAT(texts[0], HasSubstr("right.weight on rank 0"));
  EXPECT_THAT(texts[1],
              AllOf(HasSubstr("rank 0"), HasSubstr("bucket 0"), HasSubstr("trunk.weight")));
}

TEST(DdpTest, AnOutputThatTheLossDoesNotUseIsFoundAtTheNextForwardPass) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel ddp(make_heads(), group);
    const Tree out = ddp(heads_input(rank_input(group), true, true));
    out[0].tensor().sum().backward();
    EXPECT_THAT(message_of([&] { ddp(heads_input(rank_input(group), true, true)); }),
                AllOf(HasSubstr("right.weight"), HasSubstr("iteration 1")));
  });
}

TEST(DdpTest, TwoBackwardPassesMayShareTheOutputsOfOneForwardPass) {
  on_ranks(2, [](const Group& group) {
    const at::Tensor left = parameter({kOut, kIn}, 1), right = parameter({kOut, kIn}, 2);
    const nn::Model net = nn::from_function(
        [=](const Tree& x) -> Tree {
          return Tree::List{at::linear(x.tensor(), left), at::linear(x.tensor(), right)};
        },
        {{"left", left}, {"right", right}});
    DistributedDataParallel ddp(net, group);
    for (int64_t step = 0; step < 3; ++step) {
      left.mutable_grad().reset();
      right.mutable_grad().reset();
      const Tree out = ddp(rank_input(group, step));
      out[0].tensor().sum().backward();
      out[1].tensor().sum().backward();
      const at::Tensor expected = make_batch(step, 8).x.sum(0).div(2).expand({kOut, kIn});
      EXPECT_LT((left.grad() - expected).abs().max().item<double>(), kBound);
      EXPECT_LT((right.grad() - expected).abs().max().item<double>(), kBound);
    }
  });
}

TEST(DdpTest, UnusedParametersAreFoundAndTheRestIsTheMean) {
  on_ranks(3, [](const Group& group) {
    const nn::Model net = make_heads(), alone = make_heads();
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    // Rank r uses the left head where r is 0, the right head where it is not; then nobody the
    // right.
    for (const bool right : {true, false}) {
      for (const auto& [name, tensor] : net.named_parameters()) tensor.mutable_grad().reset();
      for (const auto& [name, tensor] : alone.named_parameters()) tensor.mutable_grad().reset();
      at::Tensor sum = at::zeros({}, at::kDouble);
      const auto input = [&](int64_t rank) {
        return heads_input(make_batch(0, 12).part(rank, 3).x, rank == 0 || !right,
                           right && rank > 0);
      };
      all_squares(ddp(input(group.rank()))).backward();
      for (int64_t rank = 0; rank < 3; ++rank) sum = sum + all_squares(alone.forward(input(rank)));
      sum.div(3).backward();
      EXPECT_LT(distance(gradients_of(net), gradients_of(alone)), kBound);
      EXPECT_EQ(gradient_of(net, "right.weight").defined(), right);
    }
  });
}

TEST(DdpTest, AParameterThatNoRankUsesKeepsItsGradient) {
  on_ranks(2, [](const Group& group) {
    const nn::Model net = make_heads();
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    for (const auto& [name, tensor] : net.named_parameters())
      tensor.mutable_grad() = at::ones_like(tensor);
    all_squares(ddp(heads_input(rank_input(group), true, false))).backward();
    EXPECT_TRUE(at::equal(gradient_of(net, "right.weight"), at::ones({kOut, 4}, at::kDouble)));
  });
}

TEST(DdpTest, OutputsThatTheLossDoesNotUseAreFoundToo) {
  on_ranks(2, [](const Group& group) {
    const nn::Model net = make_heads();
    DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
    for (int64_t step = 0; step < 3; ++step) {
      const Tree out = ddp(heads_input(rank_input(group, step), true, true));
      out[0].tensor().square().mean().backward();
      EXPECT_FALSE(gradient_of(net, "right.weight").defined());
      EXPECT_TRUE(gradient_of(net, "left.weight").defined());
    }
  });
}

// The heads are used in different micro-steps of one accumulation.
void check_accumulated_heads(const DdpOptions& options) {
  on_ranks(2, [&](const Group& group) {
    const nn::Model net = make_heads(), alone = make_heads();
    DistributedDataParallel ddp(net, group, options);
    for (int64_t step = 0; step < 3; ++step) {
      for (const auto& [name, tensor] : net.named_parameters()) tensor.mutable_grad().reset();
      for (const auto& [name, tensor] : alone.named_parameters()) tensor.mutable_grad().reset();
      {
        const auto no_sync = ddp.no_sync();
        all_squares(ddp(heads_input(rank_input(group, step), true, false))).backward();
      }
      all_squares(ddp(heads_input(rank_input(group, step + 1), false, true))).backward();
      at::Tensor sum = at::zeros({}, at::kDouble);
      for (int64_t rank = 0; rank < 2; ++rank)
        for (const bool left : {true, false})
          sum = sum + all_squares(alone.forward(
                          heads_input(make_batch(step + !left, 8).part(rank, 2).x, left, !left)));
      sum.div(2).backward();
      EXPECT_LT(distance(gradients_of(net), gradients_of(alone)), kBound) << "step " << step;
    }
  });
}

TEST(DdpTest, ParametersUsedOnlyInEarlierMicroStepsAreReduced) {
  check_accumulated_heads({});
}
TEST(DdpTest, ParametersUsedOnlyInEarlierMicroStepsAreReducedWhereUnusedOnesAreSearched) {
  check_accumulated_heads({.find_unused_parameters = true});
}

TEST(DdpTest, ABlockUsedTwiceAndTwoForwardPassesBeforeOneBackwardPass) {
  on_ranks(2, [](const Group& group) {
    const at::Tensor w = parameter({kIn, kIn}, 1), v = parameter({kIn, kIn}, 1);
    const auto twice = [](const at::Tensor& x, const at::Tensor& weight) {
      return at::linear(at::tanh(at::linear(x, weight)), weight).square().mean();
    };
    const nn::Model net =
        nn::from_function([=](const Tree& x) -> Tree { return twice(x.tensor(), w); }, {{"w", w}});
    DistributedDataParallel ddp(net, group);
    for (int64_t step = 0; step < 3; ++step) {
      w.mutable_grad().reset();
      v.mutable_grad().reset();
      const at::Tensor first = ddp(rank_input(group, step)).tensor();
      const at::Tensor second = ddp(rank_input(group, step + 1)).tensor();
      (first + second).backward();
      (twice(make_batch(step, 8).x, v) + twice(make_batch(step + 1, 8).x, v)).backward();
      EXPECT_LT((w.grad() - v.grad()).abs().max().item<double>(), kBound);
    }
  });
}

TEST(DdpTest, ABackwardPassThatWouldStayLocalIsRefused) {
  on_ranks(2, [](const Group& group) {
    const nn::Model net = make_net(1);
    DistributedDataParallel ddp(net, group);
    const Batch batch = make_batch(0, 4);
    const at::Tensor first = mean_square(ddp(batch.x), batch.y);
    const at::Tensor second = mean_square(ddp(batch.x), batch.y);
    first.backward();
    EXPECT_THAT(message_of([&] { second.backward(); }), HasSubstr("add up several losses"));
    const at::Tensor outside = mean_square(ddp->forward(batch.x), batch.y);
    EXPECT_THAT(message_of([&] { outside.backward(); }),
                HasSubstr("no forward pass through DistributedDataParallel"));
  });
}

TEST(DdpTest, WithoutGradientsNothingIsReduced) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel ddp(make_net(1), group);
    if (group.rank() == 0) {
      const at::NoGradGuard no_grad;
      ddp(make_batch(0, 4).x);
    }
    EXPECT_EQ(ddp.iteration(), 0);
  });
}

TEST(DdpTest, AStaticGraphWithUnusedParametersIsTheSame) {
  on_ranks(2, [](const Group& group) {
    const nn::Model net = make_heads(), alone = make_heads();
    DistributedDataParallel ddp(net, group, {.static_graph = true});
    for (int64_t step = 0; step < 4; ++step) {
      for (const auto& [name, tensor] : net.named_parameters()) tensor.mutable_grad().reset();
      for (const auto& [name, tensor] : alone.named_parameters()) tensor.mutable_grad().reset();
      all_squares(ddp(heads_input(rank_input(group, step), true, false))).backward();
      all_squares(alone.forward(heads_input(make_batch(step, 8).x, true, false))).backward();
      EXPECT_LT(distance(gradients_of(net), gradients_of(alone)), kBound) << "step " << step;
    }
  });
}

// ---- models that differ

struct Mismatch {
  const char* name;
  std::function<nn::Model(int64_t rank)> model;
  std::function<DdpOptions(int64_t rank)> options;
  std::vector<const char*> words;
};

nn::Model with_parameters(NamedTensors parameters, NamedTensors buffers = {}) {
  return nn::from_function([](const Tree& x) { return x; }, std::move(parameters),
                           std::move(buffers));
}

const auto kNoOptions = [](int64_t) { return DdpOptions(); };
const auto kTwoParameters = [](int64_t) {
  return with_parameters({{"a", parameter({2}, 1)}, {"b", parameter({3}, 1)}});
};

std::vector<Mismatch> mismatches() {
  return {
      {"count",
       [](int64_t rank) {
         NamedTensors parameters{{"a", parameter({2}, 1)}};
         if (rank == 1) parameters.emplace_back("extra", parameter({4}, 1));
         return with_parameters(parameters);
       },
       kNoOptions,
       {"Rank 0 has 1 parameters, rank 1 has 2", "parameter extra", "[4]"}},
      {"shape",
       [](int64_t rank) {
         return with_parameters({{"a", parameter({2, 3 + rank}, 1)}});
       },
       kNoOptions,
       {"parameter a Double [2, 3]", "rank 1", "parameter a Double [2, 4]"}},
      {"type",
       [](int64_t rank) {
         return with_parameters({{"a", parameter({2}, 1, rank ? at::kFloat : at::kDouble)}});
       },
       kNoOptions,
       {"parameter a Double [2]", "parameter a Float [2]"}},
      {"order",
       [](int64_t rank) {
         const at::Tensor x = parameter({2}, 1), y = parameter({2}, 2);
         return rank ? with_parameters({{"b", x}, {"a", y}})
                     : with_parameters({{"a", x}, {"b", y}});
       },
       kNoOptions,
       {"Rank 0 has parameter a", "where rank 1 has parameter b"}},
      {"trained",
       [](int64_t rank) {
         return with_parameters(
             {{"a", parameter({2}, 1)}, {"b", parameter({2}, 1).requires_grad_(rank == 0)}});
       },
       kNoOptions,
       {"parameter b", "(not trained)"}},
      {"buffers",
       [](int64_t rank) {
         return with_parameters({{"a", parameter({2}, 1)}},
                                rank ? NamedTensors{{"m", at::zeros({2})}} : NamedTensors{});
       },
       kNoOptions,
       {"Rank 0 has 0 buffers, rank 1 has 1", "buffer m"}},
      {"ignored",
       kTwoParameters,
       [](int64_t rank) { return DdpOptions{.parameters_to_ignore = {rank ? "b" : "a"}}; },
       {"ignored parameters: a", "ignored parameters: b"}},
      {"options",
       kTwoParameters,
       [](int64_t rank) { return DdpOptions{.find_unused_parameters = rank == 1}; },
       {"find_unused_parameters = false", "find_unused_parameters = true"}},
  };
}

TEST(DdpTest, ModelsThatDifferAreRefusedOnAllRanksWithBothSidesNamed) {
  for (const Mismatch& mismatch : mismatches()) {
    SCOPED_TRACE(mismatch.name);
    PerRank<std::string> texts(2);
    const auto start = std::chrono::steady_clock::now();
    on_ranks(2, [&](const Group& group) {
      const nn::Model model = mismatch.model(group.rank());
      texts[group.rank()] = message_of(
          [&] { DistributedDataParallel(model, group, mismatch.options(group.rank())); });
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
    EXPECT_EQ(texts[0], texts[1]);
    for (const char* word : mismatch.words) EXPECT_THAT(texts[0], HasSubstr(word));
  }
}

TEST(DdpTest, ModelsAndOptionsThatCannotWorkAreRefused) {
  on_ranks(2, [](const Group& group) {
    const nn::Model net = kTwoParameters(0);
    const auto refused = [&](const DdpOptions& options) {
      return message_of([&] { DistributedDataParallel(net, group, options); });
    };
    EXPECT_THAT(refused({.bucket_cap_mb = 0}), HasSubstr("bucket_cap_mb: got 0"));
    EXPECT_THAT(refused({.parameters_to_ignore = {"c"}}), HasSubstr("no parameter or buffer c"));
    EXPECT_THAT(refused({.bucket_layout = {{"a"}}}), HasSubstr("b is in no bucket"));
    EXPECT_THAT(refused({.bucket_layout = {{"a", "a"}, {"b"}}}), HasSubstr("comes twice"));
    EXPECT_THAT(refused({.parameters_to_ignore = {"a", "b"}}), HasSubstr("no parameters"));
  });
}

TEST(DdpTest, IgnoredParametersAreEachRanksOwn) {
  on_ranks(2, [](const Group& group) {
    const at::Tensor a = parameter({kOut, kIn}, group.rank()), b = parameter({kOut}, group.rank());
    const nn::Model net = nn::from_function(
        [=](const Tree& x) -> Tree { return at::linear(x.tensor(), a, b); }, {{"a", a}, {"b", b}});
    DistributedDataParallel ddp(net, group, {.parameters_to_ignore = {"b"}});
    EXPECT_TRUE(at::equal(a, parameter({kOut, kIn}, 0)));
    EXPECT_TRUE(at::equal(b, parameter({kOut}, group.rank())));
    ddp(at::full({4, kIn}, 1.0 + static_cast<double>(group.rank()), at::kDouble))
        .tensor()
        .sum()
        .mul(1.0 + static_cast<double>(group.rank()))
        .backward();
    EXPECT_TRUE(at::equal(a.grad(), at::full({kOut, kIn}, 10.0, at::kDouble)));
    EXPECT_TRUE(at::equal(b.grad(), at::full({kOut}, 4.0 * (1 + group.rank()), at::kDouble)));
  });
}

// ---- overlap, hooks, layouts

TEST(DdpTest, TheFirstBucketIsReducedBeforeTheLastGradientIsThere) {
  using Clock = std::chrono::steady_clock;
  on_ranks(2, [](const Group& group) {
    const nn::Model net = make_net(1);
    Clock::time_point first_reduction, last_gradient;
    bool started = false;
    const CommHook hook = [&](const Group& g, GradBucket& bucket) {
      if (!started) first_reduction = Clock::now();
      started = true;
      return all_reduce_hook()(g, bucket);
    };
    DistributedDataParallel ddp(net, group, {.bucket_cap_mb = kSmallBuckets, .comm_hook = hook});
    for (const auto& [name, tensor] : net.named_parameters())
      tensor.register_hook([&](const at::Tensor&) { last_gradient = Clock::now(); });
    for (int64_t step = 0; step < 3; ++step) {
      started = false;
      const Batch batch = make_batch(step, 8).part(group.rank(), 2);
      mean_square(ddp(batch.x), batch.y).backward();
    }
    EXPECT_LT(first_reduction, last_gradient);
    EXPECT_GT(ddp.bucket_layout().size(), 1U);
  });
}

TEST(DdpTest, AHookGetsTheBucketsInOrderWithTheirParameters) {
  on_ranks(2, [](const Group& group) {
    const nn::Model net = make_net(1);
    std::vector<std::string> seen;
    std::vector<bool> last;
    const CommHook hook = [&](const Group& g, GradBucket& bucket) {
      EXPECT_EQ(bucket.index, static_cast<int64_t>(last.size()));
      EXPECT_EQ(bucket.names.size(), bucket.gradients.size());
      EXPECT_EQ(bucket.divisor, g.size());
      for (size_t i = 0; i < bucket.names.size(); ++i) {
        seen.push_back(bucket.names[i]);
        EXPECT_EQ(bucket.parameters[i].sizes(), bucket.gradients[i].sizes());
        EXPECT_TRUE(bucket.gradients[i].is_alias_of(bucket.tensor));
      }
      last.push_back(bucket.is_last);
      return all_reduce_hook()(g, bucket);
    };
    const BucketLayout layout{{"second.bias"}, {"second.weight", "first.bias"}, {"first.weight"}};
    DistributedDataParallel ddp(net, group, {.bucket_layout = layout, .comm_hook = hook});
    EXPECT_EQ(ddp.bucket_layout(), layout);
    const Batch batch = make_batch(0, 4);
    mean_square(ddp(batch.x), batch.y).backward();
    EXPECT_THAT(seen,
                testing::ElementsAre("second.bias", "second.weight", "first.bias", "first.weight"));
    EXPECT_THAT(last, testing::ElementsAre(false, false, true));
    EXPECT_EQ(ddp.bucket_layout(), layout) << "a given layout stays";
  });
}

TEST(DdpTest, WhatAHookGivesAreTheGradients) {
  on_ranks(2, [](const Group& group) {
    for (const bool view : {false, true}) {
      const at::Tensor w = parameter({kIn}, 1);
      const nn::Model net = nn::from_function(
          [=](const Tree& x) -> Tree { return (x.tensor() * w).sum(); }, {{"w", w}});
      DistributedDataParallel ddp(
          net, group,
          {.gradient_as_bucket_view = view, .comm_hook = [](const Group&, GradBucket& bucket) {
             return Reduction([tensor = bucket.tensor] { return at::full_like(tensor, 7); });
           }});
      ddp(at::ones({kIn}, at::kDouble)).tensor().backward();
      EXPECT_TRUE(at::equal(w.grad(), at::full({kIn}, 7.0, at::kDouble)));
    }
  });
}

TEST(DdpTest, AHooksErrorEndsTheBackwardPass) {
  on_ranks(2, [](const Group& group) {
    DistributedDataParallel ddp(
        make_net(1), group,
        {.comm_hook = [](const Group&, GradBucket&) -> Reduction { throw Error("no reduction"); }});
    const Batch batch = make_batch(0, 4);
    const at::Tensor loss = mean_square(ddp(batch.x), batch.y);
    EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("no reduction"));
  });
}

TEST(DdpTest, CompressedGradientsAreNearTheMeanAndTheSameOnAllRanks) {
  for (const auto& [hook, bound] :
       {std::pair(fp16_compress_hook(), 1e-3), std::pair(bf16_compress_hook(), 1e-2)}) {
    PerRank<NamedTensors> got(2);
    const nn::Model alone = make_net(1, at::kFloat);
    const Batch whole = make_batch(0, 8, at::kFloat);
    mean_square(alone.forward(whole.x), whole.y).backward();
    on_ranks(2, [&, hook = hook](const Group& group) {
      const nn::Model net = make_net(1, at::kFloat);
      DistributedDataParallel ddp(net, group, {.comm_hook = hook});
      const Batch batch = whole.part(group.rank(), 2);
      mean_square(ddp(batch.x), batch.y).backward();
      got[group.rank()] = gradients_of(net);
    });
    const double error = distance(got[0], gradients_of(alone));
    EXPECT_LT(error, bound);
    EXPECT_GT(error, 1e-7) << "nothing was rounded";
    EXPECT_EQ(distance(got[0], got[1]), 0);
  }
}

// Many parameters, so that the layout matters to the sums of three ranks.
constexpr int64_t kLayers = 12;

nn::Model make_deep() {
  NamedTensors parameters;
  std::vector<at::Tensor> weights;
  for (int64_t i = 0; i < kLayers; ++i) {
    weights.push_back(parameter({kIn, kIn}, i, at::kFloat));
    parameters.emplace_back("layer" + std::to_string(i), weights.back());
  }
  return nn::from_function(
      [weights](const Tree& input) -> Tree {
        at::Tensor x = input.tensor();
        for (const at::Tensor& weight : weights) x = x + at::tanh(at::linear(x, weight));
        return x;
      },
      parameters);
}

TEST(DdpTest, ARunResumedWithTheLayoutIsTheUnbrokenOneBitForBit) {
  for (const int64_t stop : {0, 1, 3}) {
    on_ranks(3, [&](const Group& group) {
      const DdpOptions options{.bucket_cap_mb = 300.0 / (1 << 20)};
      const auto train = [&](DdpCore& ddp, const nn::Model& net, int64_t from, int64_t to) {
        for (int64_t step = from; step < to; ++step) {
          const at::Tensor x = numbers({6, kIn}, 10 * step + group.rank(), at::kFloat);
          for (const auto& [name, tensor] : net.named_parameters()) tensor.mutable_grad().reset();
          ddp.model().forward(x).tensor().square().mean().backward();
          const at::NoGradGuard no_grad;
          for (const auto& [name, tensor] : net.named_parameters()) tensor.sub_(tensor.grad(), 0.1);
        }
      };
      const nn::Model whole = make_deep(), first = make_deep(), second = make_deep();
      DistributedDataParallel unbroken(whole, group, options);
      train(unbroken, whole, 0, 6);
      Tree saved;
      {
        DistributedDataParallel ddp(first, group, options);
        train(ddp, first, 0, stop);
        saved = ddp.state_dict();
      }
      second.load_state_dict(first.state_dict());
      DistributedDataParallel resumed(second, group, options);
      resumed.load_state_dict(saved);
      train(resumed, second, stop, 6);
      EXPECT_EQ(distance(values_of(second), values_of(whole)), 0) << "stopped after " << stop;
      EXPECT_EQ(resumed.bucket_layout(), unbroken.bucket_layout());
    });
  }
}

TEST(DdpTest, TrainerTrainsItAsAnyModel) {
  constexpr int64_t kSamples = 24;
  const auto dataset = std::make_shared<data::TensorDataset>(
      std::vector<at::Tensor>{make_batch(0, kSamples).x, make_batch(0, kSamples).y});
  const train::StepFunction step = [](const nn::Model& model, const Tree& batch) {
    return train::StepOutput{mean_square(model.forward(batch[0]), batch[1].tensor()), {}};
  };
  const auto run = [&](const nn::Model& model, int64_t rank, int64_t ranks, int64_t batch_size) {
    const auto optimizer = make_optimizer("sgd", model);
    const auto loader = data::make_loader(
        dataset,
        std::make_shared<data::DistributedSampler>(
            kSamples, data::DistributedOptions{.rank = rank, .world_size = ranks}, false),
        {.batch_size = batch_size});
    train::Trainer trainer(model, *optimizer, step, {.epochs = 2});
    trainer.fit(*loader);
    return values_of(model);
  };
  const NamedTensors expected = run(make_net(1), 0, 1, 8);
  on_ranks(2, [&](const Group& group) {
    const DistributedDataParallel ddp(make_net(1), group);
    EXPECT_LT(distance(run(ddp.model(), group.rank(), 2, 4), expected), kBound);
  });
}

TEST(DdpTest, SamplesThatDoNotComeOutEvenAreDealtOutSoThatTheTrainerEnds) {
  constexpr int64_t kSamples = 101;
  const auto dataset = std::make_shared<data::TensorDataset>(
      std::vector<at::Tensor>{make_batch(0, kSamples).x, make_batch(0, kSamples).y});
  on_ranks(2, [&](const Group& group) {
    DistributedDataParallel ddp(make_net(1), group);
    const auto optimizer = make_optimizer("sgd", ddp.model());
    const auto loader = data::make_loader(
        dataset,
        std::make_shared<data::DistributedSampler>(
            kSamples, data::DistributedOptions{.rank = group.rank(), .world_size = group.size()}),
        {.batch_size = 10});
    train::Trainer trainer(
        ddp.model(), *optimizer,
        [](const nn::Model& model, const Tree& batch) {
          return train::StepOutput{mean_square(model.forward(batch[0]), batch[1].tensor()), {}};
        },
        {.epochs = 2});
    EXPECT_EQ(trainer.fit(*loader), train::Outcome::completed);
    EXPECT_EQ(ddp.iteration(), 2 * 6);
  });
}

}  // namespace
}  // namespace bellows::parallel
