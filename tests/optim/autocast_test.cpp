#include <ATen/autocast_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/optim/sgd.h"

namespace bellows::optim {
namespace {

// Autocast to bfloat16 on the CPU, open for as long as it lives.
class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

TEST(AutocastTest, ForwardAfterAStepUnderAnOpenGuardSeesTheNewWeights) {
  const at::Tensor weight = at::ones({1, 2}).set_requires_grad(true);
  SGD sgd({{"w", weight}}, {.lr = 1.0});
  const Autocast autocast;
  const at::Tensor input = at::ones({1, 2});
  EXPECT_EQ(at::linear(input, weight).item<float>(), 2.0f);
  weight.mutable_grad() = at::full({1, 2}, -3.0);
  sgd.step();
  EXPECT_EQ(at::linear(input, weight).item<float>(), 8.0f);
}

}  // namespace
}  // namespace bellows::optim
