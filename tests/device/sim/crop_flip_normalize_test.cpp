#include "bellows/device/crop_flip_normalize.h"

#include <array>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include "bellows/device/stream.h"
#include "tests/device/sim/fixture.h"

namespace bellows {
namespace {

class SimCrop : public SimTest {
 protected:
  static constexpr std::array kMean{0.5F, 0.4F, 0.3F};
  static constexpr std::array kStd{0.25F, 0.2F, 0.3F};
  const at::Tensor images_ = at::randint(256, {4, 9, 7, 3}, at::kByte);
  const std::vector<CropWindow> windows_ = {
      {0, 0, false}, {-2, 3, true}, {4, -1, true}, {9, 0, false}};
};

TEST_F(SimCrop, TheBitsAreThoseOfTheCpu) {
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const bool last : {false, true}) {
      const CropFlipNormalizeOptions options{
          .height = 8, .width = 5, .fill = 200, .type = type, .channels_last = last};
      const at::Tensor there =
          crop_flip_normalize(images_.to(sim0_), windows_, kMean, kStd, options);
      EXPECT_EQ(there.device(), sim0_);
      EXPECT_TRUE(
          at::equal(there.cpu(), crop_flip_normalize(images_, windows_, kMean, kStd, options)));
    }
  }
}

// A copy that is still under way on the current stream is waited for.
TEST_F(SimCrop, ItComesAfterWhatTheStreamHasToDo) {
  const CropFlipNormalizeOptions options{.height = 8, .width = 5};
  const at::Tensor host = images_.pin_memory();
  const at::Tensor there = at::zeros(images_.sizes(), at::TensorOptions(sim0_).dtype(at::kByte));
  const Stream side = Stream::from_pool(sim0_);
  const StreamGuard on(side);
  there.copy_(host, /*non_blocking=*/true);
  const at::Tensor out = crop_flip_normalize(there, windows_, kMean, kStd, options);
  EXPECT_TRUE(at::equal(out.cpu(), crop_flip_normalize(images_, windows_, kMean, kStd, options)));
}

}  // namespace
}  // namespace bellows
