#include "bellows/memory/report.h"

#include <gmock/gmock.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>

#include "bellows/core/error.h"
#include "bellows/core/options.h"
#include "bellows/device/memory.h"
#include "bellows/device/sim.h"
#include "bellows/memory/batch_size.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/adamw.h"

namespace bellows::memory {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

c10::Device device() {
  return sim::device(1);
}

TEST(ReportOfADevice, LiveAndCachedAreWhatIsReserved) {
  Options options;
  const nn::Model model = nn::builtin_models().make("mlp", options);
  model.to(device());
  optim::AdamW optimizer(model.named_parameters());
  const at::Tensor x = at::randn({64, 784}).to(device());
  model.forward(x).tensor().sum().backward();
  optimizer.step();
  { const at::Tensor passing = at::empty({8 * kMiB}, at::device(device()).dtype(at::kByte)); }
  const Report found = report(device(), {.model = &model, .optimizer = &optimizer});
  const MemoryStats stats = memory_stats(device());
  EXPECT_EQ(*found.live + found.cached, stats.reserved);
  EXPECT_GE(found.cached, 8 * kMiB);
  EXPECT_GE(*found.activations, 64 * 784 * 4);
  EXPECT_LT(*found.activations, 64 * 784 * 4 + 64 * 1024);
  EXPECT_THAT(found.table(), HasSubstr("cached"));
  EXPECT_FALSE(found.outside);
  empty_cache(device());
  EXPECT_EQ(report(device()).cached, 0);
}

TEST(PhasePeaksOfADevice, ForwardHoldsTheActivations) {
  const at::Tensor w = at::randn({64, 64}).to(device()).requires_grad_();
  const at::Tensor x = at::randn({4096, 64}).to(device());
  PhasePeaks peaks(device());
  peaks.begin(Phase::forward);
  at::Tensor y = at::linear(x, w).tanh().square().mean();
  peaks.begin(Phase::backward);
  y.backward();
  peaks.begin(Phase::update);
  y.reset();
  peaks.end();
  EXPECT_GT(peaks.peak(Phase::forward), 2 * kMiB);
  EXPECT_GT(peaks.peak(Phase::backward), peaks.peak(Phase::update));
}

// The real error of a device's allocator.
TEST(BatchSizeOnADevice, FindsWhatFits) {
  const int64_t sample = 16 * kMiB;
  const int64_t free = sim::memory_limit() - memory_stats(device()).allocated;
  const int64_t found = find_batch_size(
      [&](int64_t size) { at::empty({size * sample}, at::device(device()).dtype(at::kByte)); },
      {.limit = 4096, .device = device()});
  EXPECT_EQ(found, free / sample);
  EXPECT_EQ(report(device()).cached, 0);
}

TEST(LeakSentinelOfADevice, FindsWhatGrows) {
  LeakSentinel sentinel(device());
  std::vector<at::Tensor> leaked;
  for (int i = 0; i < 12; ++i) {
    leaked.push_back(at::empty({100}, at::device(device())));
    sentinel.look();
  }
  EXPECT_THROW(sentinel.check(), Error);
}

}  // namespace
}  // namespace bellows::memory
