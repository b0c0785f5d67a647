// What only a machine with an NVIDIA device can show.
#include <array>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/device/crop_flip_normalize.h"
#include "bellows/device/cuda_module.h"
#include "bellows/device/device.h"
#include "bellows/device/memory.h"
#include "bellows/device/move.h"
#include "bellows/device/normalize.h"
#include "bellows/device/seed.h"
#include "bellows/device/stream.h"

namespace bellows {
namespace {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const CudaReport report = cuda_report();
    if (!report.usable()) GTEST_SKIP() << report.sentence;
  }
  const c10::Device cuda_{c10::kCUDA, 0};
};

TEST_F(GpuTest, AutoTakesTheFirstDeviceAndItIsListed) {
  EXPECT_EQ(pick_device("auto").device, cuda_);
  const auto devices = list_devices();
  ASSERT_GE(devices.size(), 2U);
  EXPECT_GT(devices[1].memory_bytes, int64_t{1} << 30);
  EXPECT_FALSE(devices[1].compute_capability.empty());
  ASSERT_NE(cuda_module(), nullptr);
}

TEST_F(GpuTest, NormalizeGivesTheBitsOfTheCpu) {
  const std::array mean{0.485F, 0.456F, 0.406F};
  const std::array std{0.229F, 0.224F, 0.225F};
  const at::Tensor images = at::randint(256, {5, 3, 33, 47}, at::kByte);
  for (const auto channels : {ChannelDim::first, ChannelDim::last}) {
    const at::Tensor in =
        channels == ChannelDim::first ? images : images.permute({0, 2, 3, 1}).contiguous();
    EXPECT_TRUE(at::equal(normalize(in.to(cuda_), mean, std, channels).cpu(),
                          normalize(in, mean, std, channels)));
  }
}

// More images than one launch takes, in every layout and type.
TEST_F(GpuTest, CropFlipNormalizeGivesTheBitsOfTheCpu) {
  const std::array mean{0.485F, 0.456F, 0.406F};
  const std::array std{0.229F, 0.224F, 0.225F};
  const at::Tensor images = at::randint(256, {300, 33, 47, 3}, at::kByte);
  std::vector<CropWindow> windows;
  for (int32_t n = 0; n < 300; ++n) windows.push_back({n % 50 - 25, n % 70 - 35, n % 3 == 0});
  for (const bool planes : {false, true}) {
    const at::Tensor in =
        planes ? images.permute({0, 3, 1, 2}).contiguous().permute({0, 2, 3, 1}) : images;
    for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
      for (const bool last : {false, true}) {
        const CropFlipNormalizeOptions options{
            .height = 29, .width = 31, .fill = 9, .type = type, .channels_last = last};
        const at::Tensor there = crop_flip_normalize(in.to(cuda_), windows, mean, std, options);
        EXPECT_TRUE(at::equal(there.cpu(), crop_flip_normalize(in, windows, mean, std, options)))
            << planes << type << last;
      }
    }
  }
}

TEST_F(GpuTest, WorkOnAnotherStreamIsWaitedForByAnEvent) {
  const Stream side = Stream::from_pool(cuda_);
  EXPECT_FALSE(side == Stream::current(cuda_));
  Event start(cuda_, true);
  Event done(cuda_, true);
  at::Tensor result;
  {
    const StreamGuard guard(side);
    EXPECT_EQ(Stream::current(cuda_), side);
    start.record(side);
    at::Tensor a = at::rand({2048, 2048}, at::TensorOptions(cuda_));
    for (int i = 0; i < 20; ++i) a = a.matmul(a).clamp(0, 1);
    result = a;
    done.record(side);
  }
  EXPECT_FALSE(Stream::current(cuda_) == side);
  EXPECT_NE(side.native_handle(), nullptr);
  Stream::current(cuda_).wait(done);
  done.synchronize();
  EXPECT_TRUE(done.query());
  EXPECT_GT(start.elapsed_until(done).count(), 0.0);
  EXPECT_TRUE(result.le(1).all().item<bool>());
}

TEST_F(GpuTest, MemoryIsCountedAndPeaksReset) {
  empty_cache(cuda_);
  const auto before = memory_stats(cuda_).allocated;
  reset_peak(cuda_);
  { const at::Tensor big = at::zeros({1 << 20}, at::TensorOptions(cuda_)); }
  synchronize(cuda_);
  const MemoryStats stats = memory_stats(cuda_);
  EXPECT_EQ(stats.allocated, before);
  EXPECT_GE(stats.peak_allocated, before + (4 << 20));
  EXPECT_GE(stats.reserved, stats.allocated);
  reset_peak(cuda_);
  EXPECT_EQ(memory_stats(cuda_).peak_allocated, before);
}

TEST_F(GpuTest, SeedsAndStatesCoverTheDevice) {
  const auto draw = [&] { return at::rand({100}, at::TensorOptions(cuda_)); };
  seed_everything(3);
  const at::Tensor first = draw();
  const Tree saved = RandomState().state_dict();
  EXPECT_TRUE(saved.contains("cuda:0"));
  const at::Tensor second = draw();
  RandomState().load_state_dict(saved);
  EXPECT_TRUE(at::equal(draw(), second));
  seed_everything(3);
  EXPECT_TRUE(at::equal(draw(), first));
}

TEST_F(GpuTest, ANestMovesThereAndBack) {
  const at::Tensor tensor = at::rand({10});
  const Tree there = to(Tree(Tree::List{tensor}), cuda_, /*non_blocking=*/true);
  EXPECT_EQ(there[0].tensor().device(), cuda_);
  EXPECT_TRUE(at::equal(to(there, c10::Device(c10::kCPU))[0].tensor(), tensor));
}

}  // namespace
}  // namespace bellows
