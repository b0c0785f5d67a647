#include "bellows/memory/report.h"

#include <gmock/gmock.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include "bellows/core/error.h"
#include "bellows/core/options.h"
#include "bellows/device/memory.h"
#include "bellows/memory/host_memory.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/adamw.h"
#include "tests/support/message_of.h"

namespace bellows::memory {
namespace {

using ::bellows::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

TEST(HostMemory, CountsLiveTensorsAndTheirPeak) {
  count_host_memory();
  count_host_memory();
  const HostMemory before = host_memory();
  reset_host_peak();
  {
    const at::Tensor a = at::empty({kMiB}, at::kByte), b = at::empty({3 * kMiB}, at::kByte);
    const HostMemory now = host_memory();
    EXPECT_GE(now.live - before.live, 4 * kMiB);
    EXPECT_LE(now.live - before.live, 4 * kMiB + 8192);
    EXPECT_EQ(now.blocks - before.blocks, 2);
  }
  EXPECT_EQ(host_memory().live, before.live);
  EXPECT_EQ(host_memory().blocks, before.blocks);
  EXPECT_GE(host_memory().peak - before.live, 4 * kMiB);
  reset_host_peak();
  EXPECT_EQ(host_memory().peak, host_memory().live);
}

TEST(HostMemory, ResizedTensorsStayCounted) {
  count_host_memory();
  const HostMemory before = host_memory();
  {
    at::Tensor a = at::empty({10});
    a.resize_({kMiB});
    EXPECT_GE(host_memory().live - before.live, 4 * kMiB);
  }
  EXPECT_EQ(host_memory().live, before.live);
}

TEST(Report, OnTheCpuItTellsThePartsApart) {
  count_host_memory();
  Options options;
  const nn::Model model = nn::builtin_models().make("mlp", options);
  optim::AdamW optimizer(model.named_parameters());
  model.forward(at::randn({4, 784})).tensor().sum().backward();
  optimizer.step();
  const at::Tensor held = at::empty({16 * kMiB}, at::kByte);
  const Report found = report(c10::kCPU, {.model = &model, .optimizer = &optimizer});
  const int64_t weights = (784 * 128 + 128 + 128 * 10 + 10) * 4;
  EXPECT_EQ(found.parameters, weights);
  EXPECT_EQ(found.gradients, weights);
  EXPECT_EQ(found.optimizer, 2 * weights + 4 * 4);
  ASSERT_TRUE(found.live && found.activations && found.resident);
  EXPECT_GE(*found.activations, 16 * kMiB);
  EXPECT_GE(*found.resident, *found.live);
  EXPECT_FALSE(found.outside);
  EXPECT_EQ(found.cached, 0);
  EXPECT_THAT(found.table(), AllOf(HasSubstr("memory of cpu"), HasSubstr("parameters"),
                                   HasSubstr("optimizer state"), HasSubstr("resident")));
}

TEST(Report, TheCacheCallIsThereWithoutCuda) {
  EXPECT_NO_THROW(empty_cache(c10::kCPU));
}

TEST(PhasePeaks, TellsThePhasesApart) {
  PhasePeaks peaks(c10::kCPU);
  const int64_t start = host_memory().live;
  peaks.begin(Phase::forward);
  { const at::Tensor a = at::empty({8 * kMiB}, at::kByte); }
  peaks.begin(Phase::backward);
  { const at::Tensor a = at::empty({2 * kMiB}, at::kByte); }
  peaks.end();
  EXPECT_GE(peaks.peak(Phase::forward) - start, 8 * kMiB);
  EXPECT_GE(peaks.peak(Phase::backward) - start, 2 * kMiB);
  EXPECT_LT(peaks.peak(Phase::backward) - start, 3 * kMiB);
  EXPECT_EQ(peaks.peak(Phase::update), 0);
  EXPECT_THAT(peaks.table(), AllOf(HasSubstr("forward"), HasSubstr("update")));
}

TEST(LeakSentinel, FindsWhatGrows) {
  LeakSentinel sentinel;
  std::vector<at::Tensor> leaked;
  for (int i = 0; i < 20; ++i) {
    leaked.push_back(at::ones({100}));
    sentinel.look();
  }
  EXPECT_THAT(message_of<Error>([&] { sentinel.check(); }),
              AllOf(HasSubstr("memory of cpu grows"), HasSubstr("at look 20")));
}

TEST(LeakSentinel, IsContentWithWhatStaysAndAsksForLooks) {
  LeakSentinel sentinel;
  EXPECT_THROW(sentinel.check(), ValueError);
  const at::Tensor held = at::ones({100});
  for (int i = 0; i < 20; ++i) {
    const at::Tensor passing = at::ones({100});
    sentinel.look();
  }
  EXPECT_NO_THROW(sentinel.check());
}

}  // namespace
}  // namespace bellows::memory
