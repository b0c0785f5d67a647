#include "bellows/memory/checkpoint.h"

#include <gmock/gmock.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/autograd.h>

#include "bellows/device/interceptor.h"
#include "tests/support/message_of.h"

namespace bellows::memory {
namespace {

using ::bellows::testing::message_of;
using ::testing::HasSubstr;

at::Tensor weight(int64_t rows, int64_t columns, uint64_t seed) {
  return at::randn({rows, columns}, at::detail::createCPUGenerator(seed)).requires_grad_();
}

at::Tensor random_state() {
  return at::detail::getDefaultCPUGenerator().get_state();
}

// A block with dropout, and how often it has run.
struct Block {
  at::Tensor w1 = weight(16, 8, 1), w2 = weight(8, 16, 2);
  std::shared_ptr<int> runs = std::make_shared<int>(0);

  at::Tensor operator()(const at::Tensor& x) const {
    ++*runs;
    return x + at::dropout(at::linear(at::gelu(at::linear(x, w1)), w2), 0.3, /*train=*/true);
  }
  std::vector<at::Tensor> parameters() const { return {w1, w2}; }
};

struct Outcome {
  at::Tensor loss, random;
  std::vector<at::Tensor> gradients;
};

// Loss, gradients and random state of a computation, from the same start.
Outcome outcome_of(const std::function<at::Tensor()>& loss_of,
                   const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  at::manual_seed(7);
  const at::Tensor loss = loss_of();
  loss.backward();
  Outcome out{loss.detach(), random_state(), {}};
  for (const at::Tensor& parameter : parameters)
    out.gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return out;
}

void expect_same(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(at::equal(a.loss, b.loss));
  EXPECT_TRUE(at::equal(a.random, b.random));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    ASSERT_EQ(a.gradients[i].defined(), b.gradients[i].defined()) << i;
    if (a.gradients[i].defined()) {
      EXPECT_TRUE(at::equal(a.gradients[i], b.gradients[i])) << i;
    }
  }
}

const at::Tensor kInput = at::randn({4, 8}, at::detail::createCPUGenerator(3));

TEST(Checkpoint, GradientsLossAndRandomStateAreThoseOfThePlainRun) {
  const Block first, second;
  std::vector<at::Tensor> parameters = first.parameters();
  for (const auto& p : second.parameters()) parameters.push_back(p);
  const auto plain = outcome_of([&] { return second(first(kInput)).square().mean(); }, parameters);
  *first.runs = *second.runs = 0;
  const auto again =
      outcome_of([&] { return second(checkpoint(first, kInput)).square().mean(); }, parameters);
  EXPECT_EQ(*first.runs, 2);
  EXPECT_EQ(*second.runs, 1);
  expect_same(plain, again);
}

TEST(Checkpoint, WithoutRandomStateDropoutDiffers) {
  const Block block;
  const auto run = [&](bool preserve) {
    return outcome_of(
        [&] {
          return checkpoint_with({.preserve_rng_state = preserve}, block, kInput).square().mean();
        },
        block.parameters());
  };
  EXPECT_FALSE(at::equal(run(true).gradients[0], run(false).gradients[0]));
}

TEST(Checkpoint, NothingInsideIsKept) {
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> inner;
  const at::Tensor w = weight(8, 8, 1);
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& x) {
        const at::Tensor hidden = at::linear(x, w);
        inner.emplace(hidden.storage().getWeakStorageImpl());
        return at::tanh(at::sin(hidden));
      },
      kInput);
  EXPECT_TRUE(inner->expired());
  y.sum().backward();
  EXPECT_TRUE(inner->expired());
  EXPECT_TRUE(w.grad().defined());
}

TEST(Checkpoint, NestedBlocksAreThoseOfThePlainRun) {
  const Block a, b, c;
  std::vector<at::Tensor> parameters = a.parameters();
  for (const auto* block : {&b, &c})
    for (const auto& p : block->parameters()) parameters.push_back(p);
  const auto plain = outcome_of([&] { return c(b(a(kInput))).square().mean(); }, parameters);
  const auto nested = outcome_of(
      [&] {
        return checkpoint(
                   [=](const at::Tensor& x) {
                     return checkpoint(c, checkpoint(b, checkpoint(a, x)));
                   },
                   kInput)
            .square()
            .mean();
      },
      parameters);
  expect_same(plain, nested);
}

TEST(Checkpoint, SeveralInputsOutputsAndOtherArguments) {
  const at::Tensor w = weight(8, 8, 1);
  const at::Tensor x = kInput.clone().requires_grad_(), y = kInput.cos().requires_grad_();
  const auto fn = [w](const at::Tensor& x, double scale, const std::vector<at::Tensor>& more,
                      const std::optional<at::Tensor>& none, const std::string& word,
                      const at::Tensor& unused) {
    EXPECT_FALSE(none.has_value());
    EXPECT_EQ(word, "word");
    EXPECT_TRUE(unused.defined());
    const at::Tensor h = at::linear(x, w) * scale;
    return std::pair(at::tanh(h) * more[1], std::vector<at::Tensor>{at::sin(h), more[0].exp()});
  };
  const auto loss = [&](auto outputs) {
    return outputs.first.sum() + outputs.second[0].square().sum() + outputs.second[1].sum();
  };
  const std::optional<at::Tensor> none;
  const std::vector<at::Tensor> more{y, y.sin()}, parameters{w, x, y};
  const auto plain = outcome_of(
      [&] {
        return loss(fn(x, 0.5, {y, y.sin()}, none, "word", kInput));
      },
      parameters);
  const auto again = outcome_of(
      [&] {
        return loss(checkpoint(fn, x, 0.5, std::vector<at::Tensor>{y, y.sin()}, none,
                               std::string("word"), kInput));
      },
      parameters);
  expect_same(plain, again);
}

TEST(Checkpoint, TreesGoInAndOut) {
  const at::Tensor w = weight(8, 8, 1);
  const auto fn = [w](const Tree& in) -> Tree {
    const at::Tensor h = at::linear(in.at("x").tensor(), w).tanh();
    return Tree::Dict{{"sum", at::Tensor(h.sum() * in.at("scale").number())}, {"all", h.exp()}};
  };
  const Tree input = Tree::Dict{{"x", kInput}, {"scale", 3.0}, {"name", "n"}};
  const auto loss = [](const Tree& out) {
    return out.at("sum").tensor() + out.at("all").tensor().sum();
  };
  expect_same(outcome_of([&] { return loss(fn(input)); }, {w}),
              outcome_of([&] { return loss(checkpoint(fn, input)); }, {w}));
}

TEST(Checkpoint, ABlockMayBeUsedTwice) {
  const Block block;
  expect_same(
      outcome_of([&] { return block(block(kInput)).square().mean(); }, block.parameters()),
      outcome_of([&] { return checkpoint(block, checkpoint(block, kInput)).square().mean(); },
                 block.parameters()));
}

TEST(Checkpoint, WithoutGradientsItOnlyCalls) {
  const Block block;
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint(block, kInput).requires_grad());
  EXPECT_EQ(*block.runs, 1);
}

TEST(Checkpoint, RecomputationStopsWithTheLastTensorThatIsNeeded) {
  int after = 0;
  const at::Tensor w = weight(8, 8, 1);
  const auto fn = [&, w](const at::Tensor& x) {
    const at::Tensor y = at::tanh(at::linear(x, w));
    ++after;
    return y + 1;
  };
  checkpoint(fn, kInput).sum().backward();
  EXPECT_EQ(after, 1);
  checkpoint_with({.early_stop = false}, fn, kInput).sum().backward();
  EXPECT_EQ(after, 3);
}

TEST(Checkpoint, TheEndOfARecomputationPassesThroughCatches) {
  const at::Tensor w = weight(8, 8, 1);
  const auto fn = [w](const at::Tensor& x) {
    try {
      return at::tanh(at::linear(x, w)).sin();
    } catch (const std::exception& error) {
      throw std::runtime_error("wrapped");
    }
  };
  expect_same(outcome_of([&] { return fn(kInput).sum(); }, {w}),
              outcome_of([&] { return checkpoint(fn, kInput).sum(); }, {w}));
}

TEST(Checkpoint, ErrorsOfTheFunctionPassThrough) {
  EXPECT_THROW(
      checkpoint([](const at::Tensor&) -> at::Tensor { throw ValueError("first"); }, kInput),
      ValueError);
  int runs = 0;
  const at::Tensor w = weight(8, 8, 1);
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& x) {
        if (++runs == 2) throw ValueError("second");
        return at::tanh(at::linear(x, w));
      },
      kInput);
  EXPECT_EQ(message_of<ValueError>([&] { y.sum().backward(); }), "second");
}

TEST(Checkpoint, AnotherShapeIsNamedWithBothAndWhatToDo) {
  int runs = 0;
  const at::Tensor w = weight(8, 8, 1);
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& x) {
        return at::tanh(at::linear(++runs == 2 ? x.narrow(0, 0, 2) : x, w)).sum();
      },
      kInput);
  EXPECT_THAT(message_of<CheckpointError>([&] { y.backward(); }),
              ::testing::AllOf(HasSubstr("tensor 0 of "), HasSubstr("saved Float [4, 8] on cpu"),
                               HasSubstr("recomputed Float [2, 8] on cpu"),
                               HasSubstr("must compute the same")));
}

TEST(Checkpoint, FewerTensorsAreCounted) {
  int runs = 0;
  const at::Tensor w = weight(8, 8, 1);
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& x) {
        const at::Tensor h = at::linear(x, w);
        return ++runs == 2 ? h : at::tanh(at::sin(h));
      },
      kInput);
  EXPECT_THAT(message_of<CheckpointError>([&] { y.sum().backward(); }),
              HasSubstr("the recomputation saved 1 tensors"));
}

TEST(Checkpoint, MoreTensorsAreCountedWithoutEarlyStop) {
  int runs = 0;
  const at::Tensor w = weight(8, 8, 1);
  const at::Tensor y = checkpoint_with(
      {.early_stop = false},
      [&](const at::Tensor& x) {
        const at::Tensor h = at::sin(at::linear(x, w));
        return ++runs == 2 ? at::tanh(h) : h;
      },
      kInput);
  EXPECT_THAT(message_of<CheckpointError>([&] { y.sum().backward(); }),
              HasSubstr("the recomputation saved 3 tensors for the backward pass, the first "
                        "computation 2"));
}

TEST(Checkpoint, AnArgumentChangedInPlaceIsFound) {
  const at::Tensor w = weight(8, 8, 1), x = kInput.clone();
  const at::Tensor y = checkpoint([w](const at::Tensor& x) { return at::linear(x, w).tanh(); }, x);
  x.add_(1);
  EXPECT_THAT(message_of<c10::Error>([&] { y.sum().backward(); }),
              ::testing::AllOf(HasSubstr("modified by an inplace operation"),
                               HasSubstr("tensor 0 of a checkpointed function's arguments")));
}

TEST(Checkpoint, AnInnerTensorChangedInPlaceIsFoundAsWithoutIt) {
  const auto fn = [](const at::Tensor& x) {
    const at::Tensor y = at::exp(x);
    y.add_(5);
    return y;
  };
  const at::Tensor x = at::ones({2}).requires_grad_();
  EXPECT_THROW(fn(x).sum().backward(), c10::Error);
  EXPECT_THAT(message_of<c10::Error>([&] { checkpoint(fn, x).sum().backward(); }),
              HasSubstr("modified by an inplace operation"));
}

TEST(Checkpoint, TheGraphMayBeKeptAndGoneThroughTwice) {
  const Block block;
  const at::Tensor loss = checkpoint(block, kInput).square().mean();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = block.w1.grad().clone();
  loss.backward();
  EXPECT_EQ(*block.runs, 3);
  EXPECT_TRUE(at::equal(block.w1.grad(), once + once));
}

TEST(Checkpoint, PartOfTheGraphAlone) {
  const at::Tensor a = weight(8, 8, 1), b = weight(8, 8, 2);
  const at::Tensor loss = checkpoint(
      [=](const at::Tensor& x) { return at::linear(at::tanh(at::linear(x, a)), b).sin().sum(); },
      kInput);
  const auto gb = torch::autograd::grad({loss}, {b}, {}, true);
  const auto ga = torch::autograd::grad({loss}, {a}, {}, true);
  loss.backward();
  EXPECT_TRUE(at::equal(ga[0], a.grad()));
  EXPECT_TRUE(at::equal(gb[0], b.grad()));
}

TEST(Checkpoint, ABackwardInsideTheFunction) {
  const at::Tensor w = weight(8, 8, 1), x = kInput.clone().requires_grad_();
  const auto fn = [w](const at::Tensor& x) {
    const at::Tensor y = at::tanh(at::linear(x, w));
    const at::Tensor slope = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
    return (y * slope.square()).sum();
  };
  expect_same(outcome_of([&] { return fn(x); }, {w, x}),
              outcome_of([&] { return checkpoint(fn, x); }, {w, x}));
}

TEST(Checkpoint, SecondDerivativesPass) {
  const at::Tensor w = weight(8, 8, 1), x = kInput.clone().requires_grad_();
  const auto fn = [w](const at::Tensor& x) { return at::tanh(at::linear(x, w)).square().sum(); };
  const auto loss = [&](const at::Tensor& y) {
    return torch::autograd::grad({y}, {x}, {}, true, true)[0].square().sum();
  };
  expect_same(outcome_of([&] { return loss(fn(x)); }, {w, x}),
              outcome_of([&] { return loss(checkpoint(fn, x)); }, {w, x}));
}

TEST(Checkpoint, StateThatTheFunctionChangesIsPutBack) {
  const at::Tensor w = weight(8, 8, 1), mean = at::ones({8});
  const auto fn = [=](const at::Tensor& x) {
    const at::Tensor h = at::linear(x, w);
    {
      const at::NoGradGuard no_grad;
      mean.mul_(0.9).add_(h.mean(0), 0.1);
    }
    return at::tanh(h).sin();
  };
  fn(kInput);
  const at::Tensor expected = mean.clone();
  mean.fill_(1);
  checkpoint_with({.early_stop = false, .buffers = {mean}}, fn, kInput).sum().backward();
  EXPECT_TRUE(at::equal(mean, expected));
}

TEST(Checkpoint, GraphsAreFreed) {
  std::shared_ptr<int> held = std::make_shared<int>(0);
  const at::Tensor w = weight(8, 8, 1);
  {
    const at::Tensor y =
        checkpoint([held, w](const at::Tensor& x) { return at::tanh(at::linear(x, w)); }, kInput);
    EXPECT_GT(held.use_count(), 1);
  }
  EXPECT_EQ(held.use_count(), 1);
  const at::Tensor y =
      checkpoint([held, w](const at::Tensor& x) { return at::tanh(at::linear(x, w)); }, kInput);
  y.sum().backward();
  EXPECT_EQ(held.use_count(), 1);
}

// Attention and a feed-forward net, with what selective recomputation has to get right.
struct Layers {
  at::Tensor q = weight(8, 8, 1), k = weight(8, 8, 2), up = weight(32, 8, 3),
             down = weight(8, 32, 4);
  at::Tensor operator()(const at::Tensor& x) const {
    const at::Tensor scores = at::softmax(at::matmul(at::linear(x, q), at::linear(x, k).t()), -1);
    const at::Tensor y = x + at::dropout(at::matmul(scores, x), 0.2, true);
    return y + at::dropout(at::linear(at::gelu(at::linear(y, up)), down), 0.2, true);
  }
  std::vector<at::Tensor> parameters() const { return {q, k, up, down}; }
};

TEST(KeptOperators, GradientsAndRandomStateAreThoseOfThePlainRun) {
  const Layers layers;
  const auto plain =
      outcome_of([&] { return layers(kInput).square().mean(); }, layers.parameters());
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"linear"},
        {"aten::linear", "matmul"},
        {"softmax"},
        {"dropout"},
        {"linear", "matmul", "dropout", "gelu", "softmax"}}) {
    const auto again = outcome_of(
        [&] { return checkpoint_with({.save_operators = names}, layers, kInput).square().mean(); },
        layers.parameters());
    expect_same(plain, again);
  }
}

TEST(KeptOperators, AreNotRunAgain) {
  const at::Tensor w = weight(8, 8, 1);
  int runs = 0;
  const auto fn = [&, w](const at::Tensor& x) {
    const at::Tensor h = at::linear(at::sin(x), w);
    runs += 1;
    return at::tanh(at::cos(h));
  };
  const auto count = [&](const std::vector<std::string>& names) {
    int linears = 0;
    const at::Tensor loss = checkpoint_with({.save_operators = names}, fn, kInput).sum();
    {
      // Counts what the recomputation runs of kernels: of the product there is none.
      const InterceptGuard guard(
          [&](const OperatorCall& call) { linears += call.name() == "aten::linear"; });
      loss.backward();
    }
    return linears;
  };
  EXPECT_EQ(count({"sin"}), 1);
  EXPECT_EQ(runs, 2);
}

TEST(KeptOperators, AResultMayBeChangedInPlaceAfterwards) {
  const at::Tensor w = weight(8, 8, 1);
  const auto fn = [w](const at::Tensor& x) { return at::linear(x, w).relu_().sin().cos().sum(); };
  const auto plain = outcome_of([&] { return fn(kInput); }, {w});
  expect_same(plain, outcome_of(
                         [&] {
                           const at::Tensor loss =
                               checkpoint_with({.save_operators = {"linear"}}, fn, kInput);
                           torch::autograd::grad({loss}, {w}, {}, /*retain_graph=*/true);
                           return loss;
                         },
                         {w}));
}

TEST(KeptOperators, AChangeThatCannotBeSeenComingIsAnError) {
  const at::Tensor w = weight(8, 8, 1);
  const at::Tensor y = checkpoint_with(
      {.save_operators = {"linear"}},
      [w](const at::Tensor& x) {
        const at::Tensor h = at::linear(x, w);
        at::Tensor same = h.detach();
        at::add_out(same, same, same);
        return h.sin().cos();
      },
      kInput);
  EXPECT_THAT(message_of<CheckpointError>([&] { y.sum().backward(); }),
              HasSubstr("aten::linear was changed in place"));
}

TEST(KeptOperators, OperatorsThatCannotBeKeptAreRefused) {
  const auto run = [&](const std::string& name) {
    checkpoint_with(
        {.save_operators = {name}},
        [](const at::Tensor& x) { return x.clone().relu_().view({-1}).chunk(2)[0]; }, kInput);
  };
  EXPECT_THAT(message_of<ValueError>([&] { run("relu_"); }), HasSubstr("changes its arguments"));
  EXPECT_THAT(message_of<ValueError>([&] { run("view"); }), HasSubstr("gives a view"));
}

}  // namespace
}  // namespace bellows::memory
