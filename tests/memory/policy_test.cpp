#include "bellows/memory/policy.h"

#include <gmock/gmock.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include "bellows/core/options.h"
#include "bellows/nn/registry.h"
#include "tests/support/message_of.h"

namespace bellows::memory {
namespace {

using ::bellows::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

nn::Model make_model(const std::string& name) {
  Options options("model");
  if (name == "resnet18") options.set("classes", int64_t{10});
  if (name == "mlp") options.set("hidden", std::vector<int64_t>{32, 32, 32});
  at::manual_seed(1);
  return nn::builtin_models().make(name, options);
}

at::Tensor make_input(const std::string& name) {
  const auto generator = at::detail::createCPUGenerator(2);
  return name == "resnet18" ? at::randn({4, 3, 16, 16}, generator)
                            : at::randn({4, 1, 28, 28}, generator);
}

struct Trained {
  std::vector<at::Tensor> tensors;  // gradients, buffers, random state
};

Trained train(const std::string& name, const CheckpointPolicy& policy) {
  const nn::Model model = checkpointed(make_model(name), policy);
  at::manual_seed(5);
  const at::Tensor input = make_input(name);
  const at::Tensor target = at::randint(10, {4}, at::detail::createCPUGenerator(3), at::kLong);
  for (int step = 0; step < 2; ++step)  // twice: a budget has measured then
    at::cross_entropy_loss(model.forward(input).tensor(), target).backward();
  Trained out;
  for (const auto& [key, tensor] : model.named_parameters())
    out.tensors.push_back(tensor.grad().clone());
  for (const auto& [key, tensor] : model.named_buffers()) out.tensors.push_back(tensor.clone());
  out.tensors.push_back(at::detail::getDefaultCPUGenerator().get_state());
  return out;
}

class EveryModel : public ::testing::TestWithParam<std::string> {};

// Buffers too: batch norm's statistics change once a step.
TEST_P(EveryModel, IsTheSameBitForBitUnderEveryPolicy) {
  const Trained plain = train(GetParam(), CheckpointPolicy::none());
  for (const char* policy : {"blocks", "every:2", "segments", "segments:2", "budget:1MiB",
                             "budget:1B", "operators:linear,matmul,conv2d", "operators:dropout"}) {
    const Trained again = train(GetParam(), parse_checkpoint_policy(policy));
    ASSERT_EQ(plain.tensors.size(), again.tensors.size());
    for (size_t i = 0; i < plain.tensors.size(); ++i)
      EXPECT_TRUE(at::equal(plain.tensors[i], again.tensors[i])) << policy << " tensor " << i;
  }
}
INSTANTIATE_TEST_SUITE_P(Policies, EveryModel,
                         ::testing::Values("mlp", "convnet", "resnet18", "transformer"),
                         [](const auto& info) { return info.param; });

// A row of tanh layers that counts its calls.
struct Row {
  std::vector<nn::Block> blocks;
  std::shared_ptr<int> calls = std::make_shared<int>(0);
  explicit Row(int count) {
    for (int i = 0; i < count; ++i) {
      const at::Tensor w = at::randn({16, 16}).requires_grad_();
      blocks.push_back({[w, calls = calls](const at::Tensor& x) {
        ++*calls;
        return at::tanh(at::linear(x, w));
      }});
    }
  }
  int run(BlockCheckpointing& policy) {
    *calls = 0;
    policy.run(blocks, at::randn({8, 16})).sum().backward();
    return *calls;
  }
};

TEST(CheckpointPolicy, EachKthBlockIsRecomputed) {
  Row row(5);
  BlockCheckpointing every(CheckpointPolicy::every(2)), all(CheckpointPolicy::every_block()),
      none(CheckpointPolicy::none());
  EXPECT_EQ(row.run(every), 7);
  EXPECT_THAT(every.recomputed(), ElementsAre(false, true, false, true, false));
  EXPECT_EQ(row.run(all), 10);
  EXPECT_EQ(row.run(none), 5);
}

TEST(CheckpointPolicy, ABudgetRecomputesAsFewBlocksAsFit) {
  Row row(4);
  // A block's input and its tanh are 8 * 16 * 4 bytes each: all inputs 2048, and what is plain.
  BlockCheckpointing roomy(CheckpointPolicy::budget(1 << 20)), half(CheckpointPolicy::budget(3584)),
      tight(CheckpointPolicy::budget(1));
  for (auto* policy : {&roomy, &half, &tight}) EXPECT_EQ(row.run(*policy), 8) << "measures first";
  EXPECT_EQ(row.run(roomy), 4);
  EXPECT_EQ(row.run(half), 6);
  EXPECT_THAT(half.recomputed(), ElementsAre(true, true, false, false));
  EXPECT_EQ(row.run(tight), 8);
}

TEST(CheckpointPolicy, TextsAreReadAndWritten) {
  for (const char* text : {"none", "blocks", "every:3", "segments", "segments:4", "budget:2048",
                           "operators:linear,matmul"})
    EXPECT_EQ(parse_checkpoint_policy(text).text(), text);
  EXPECT_EQ(parse_checkpoint_policy("budget:2KiB").number, 2048);
}

TEST(CheckpointPolicy, OtherTextsAreRefusedWithWhatThereIs) {
  for (const char* text : {"", "all", "every", "every:0", "every:x", "segments:", "segments:-1",
                           "operators:", "operators", "none:1", "blocks:2", "every:2x"})
    EXPECT_THAT(message_of<ValueError>([&] { parse_checkpoint_policy(text); }),
                HasSubstr("expected none, blocks, every:K"))
        << text;
  EXPECT_THROW(BlockCheckpointing{CheckpointPolicy::every(0)}, ValueError);
  EXPECT_THROW(BlockCheckpointing{CheckpointPolicy::operators({})}, ValueError);
}

TEST(CheckpointPolicy, WithoutGradientsNothingIsRecomputed) {
  Row row(3);
  BlockCheckpointing all(CheckpointPolicy::every_block());
  const at::NoGradGuard no_grad;
  all.run(row.blocks, at::randn({8, 16}));
  EXPECT_THAT(all.recomputed(), ElementsAre(false, false, false));
}

TEST(CheckpointPolicy, TheModelLivesUntilTheBackwardPass) {
  at::Tensor loss;
  {
    const nn::Model model = checkpointed(make_model("mlp"), CheckpointPolicy::every_block());
    loss = model.forward(make_input("mlp")).tensor().sum();
  }
  EXPECT_NO_THROW(loss.backward());
}

TEST(CheckpointPolicy, ACopyHasThePolicyToo) {
  const nn::Model model = checkpointed(make_model("mlp"), CheckpointPolicy::every_block());
  const nn::Model copy = model.deep_copy();
  copy.forward(make_input("mlp")).tensor().sum().backward();
  EXPECT_TRUE(copy.named_parameters()[0].second.grad().defined());
  EXPECT_FALSE(model.named_parameters()[0].second.grad().defined());
}

}  // namespace
}  // namespace bellows::memory
