#include "bellows/device/move.h"

#include <gmock/gmock.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const c10::Device kCpu(c10::kCPU);
const c10::Device kMeta(c10::kMeta);

TEST(MoveTest, EveryTensorOfANestMovesAndTheRestStays) {
  const Tree moved =
      to(Tree(Tree::Dict{{"image", at::ones({2})}, {"more", Tree::List{at::ones({3}), 5, "text"}}}),
         kMeta);
  EXPECT_TRUE(moved.at("image").tensor().is_meta());
  EXPECT_TRUE(moved.at("more")[0].tensor().is_meta());
  EXPECT_EQ(moved.at("more")[1].integer(), 5);
  EXPECT_EQ(moved.at("more")[2].string(), "text");
}

TEST(MoveTest, TensorsAlreadyThereAreShared) {
  const at::Tensor tensor = at::ones({2});
  EXPECT_TRUE(to(Tree(tensor), kCpu).tensor().is_same(tensor));
  EXPECT_TRUE(to(Tree(tensor), c10::Device(c10::kCPU, 0)).tensor().is_same(tensor));
  EXPECT_FALSE(to(Tree(at::Tensor()), kMeta).tensor().defined());
}

TEST(MoveTest, ADeviceWithoutAnIndexStandsForAnyOfItsKind) {
  EXPECT_TRUE(same_device(c10::Device(c10::kCUDA), c10::Device(c10::kCUDA, 1)));
  EXPECT_FALSE(same_device(c10::Device(c10::kCUDA, 0), c10::Device(c10::kCUDA, 1)));
  EXPECT_FALSE(same_device(kCpu, kMeta));
}

std::string message_of(c10::Device device, const NamedTensors& parameters,
                       const NamedTensors& buffers, const Tree& input) {
  try {
    check_devices(device, parameters, buffers, input);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CheckDevicesTest, NothingIsSaidWhereAllIsInPlace) {
  at::Tensor w = at::ones({2}).requires_grad_();
  w.mutable_grad() = at::ones({2});
  EXPECT_EQ(
      message_of(kCpu, {{"w", w}, {"none", at::Tensor()}}, {{"b", at::ones({1})}}, at::ones({1})),
      "no error");
}

TEST(CheckDevicesTest, EveryTensorElsewhereIsNamedWithItsDevice) {
  at::Tensor w = at::ones({2}).requires_grad_();
  w.mutable_grad() = at::ones({2});
  const at::Tensor there = at::ones({2}, at::TensorOptions(kMeta));
  const std::string message =
      message_of(kMeta, {{"fc.weight", w}, {"fc.bias", there}},
                 {{"bn.running_mean", at::zeros({1})}}, Tree(Tree::List{at::ones({1}), there}));
  EXPECT_THAT(
      message,
      HasSubstr("expected all on meta; on cpu: parameter fc.weight, gradient of fc.weight, buffer "
                "bn.running_mean, input 0;"));
  EXPECT_THAT(message, AllOf(Not(HasSubstr("fc.bias")), Not(HasSubstr("input 1"))));
}

TEST(CheckDevicesTest, ALoneInputIsCalledInput) {
  EXPECT_THAT(message_of(kMeta, {}, {}, at::ones({1})), HasSubstr("on cpu: input;"));
}

TEST(CheckDevicesTest, LongListsAreCutAndCounted) {
  NamedTensors parameters;
  for (int i = 0; i < 25; ++i) parameters.emplace_back("p" + std::to_string(i), at::ones({1}));
  EXPECT_THAT(message_of(kMeta, parameters, {}, {}),
              AllOf(HasSubstr("parameter p9 and 15 more"), Not(HasSubstr("p10"))));
}

}  // namespace
}  // namespace bellows
