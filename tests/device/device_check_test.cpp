#include "bellows/device/device_check.h"

#include <gmock/gmock.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/device/move.h"

namespace bellows {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const c10::Device kMeta(c10::kMeta);

// A model of which one layer was moved and one was not registered, so stayed.
struct Model {
  at::Tensor weight = at::ones({3, 3}, at::TensorOptions(kMeta));
  at::Tensor forgotten = at::ones({3, 3});
  at::Tensor forward(const at::Tensor& x) const {
    return at::linear(at::linear(x, weight), forgotten);
  }
  NamedTensors parameters() const { return {{"fc1.weight", weight}}; }
};

template <class Fn>
std::string message_of(Fn fn) {
  try {
    fn();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(DeviceCheckTest, AnUnregisteredTensorIsFoundInTheForwardCall) {
  const Model model;
  const at::Tensor x = at::ones({2, 3}, at::TensorOptions(kMeta));
  check_devices(kMeta, model.parameters(), {}, x);  // sees nothing wrong
  const DeviceCheckGuard guard(kMeta, model.parameters(), {}, x);
  const std::string message = message_of([&] { model.forward(x); });
  EXPECT_THAT(message, HasSubstr("aten::linear: tensors of two devices meet, expected all on meta: "
                                 "input on meta, weight on cpu "
                                 "(neither parameter, buffer nor input: register it"));
}

TEST(DeviceCheckTest, ParametersAndInputsAreNamed) {
  const Model model;
  const at::Tensor x = at::ones({2, 3});
  const DeviceCheckGuard guard(kMeta, model.parameters(), {}, Tree(Tree::Dict{{"image", x}}));
  EXPECT_THAT(message_of([&] { model.forward(x); }),
              AllOf(HasSubstr("input on cpu (input image)"),
                    HasSubstr("weight on meta (parameter fc1.weight)")));
}

TEST(DeviceCheckTest, AViewIsNamedAfterItsParameter) {
  const Model model;
  const at::Tensor x = at::ones({3, 3});
  const DeviceCheckGuard guard(kMeta, model.parameters());
  EXPECT_THAT(message_of([&] { x.matmul(model.weight.t()); }), HasSubstr("(parameter fc1.weight)"));
}

TEST(DeviceCheckTest, ElementsOfListsAreNamed) {
  const at::Tensor there = at::ones({2}, at::TensorOptions(kMeta));
  const at::Tensor here = at::ones({2});
  const DeviceCheckGuard guard(kMeta, {{"a", there}}, {{"mask", here}});
  EXPECT_THAT(message_of([&] {
                at::cat({there, here});
              }),
              HasSubstr("tensors[1] on cpu (buffer mask)"));
}

TEST(DeviceCheckTest, MixturesThatLibTorchAllowsPass) {
  const at::Tensor there = at::ones({4}, at::TensorOptions(kMeta));
  const DeviceCheckGuard guard(kMeta, {});
  EXPECT_EQ(message_of([&] {
              there.mul(at::ones({}));             // a number
              there.index({at::arange(2)});        // an index
              there.clone().copy_(at::ones({4}));  // a copy
              at::ones({4}).to(kMeta);
            }),
            "no error");
}

TEST(DeviceCheckTest, OneDevicePasses) {
  const at::Tensor x = at::ones({2, 3}).requires_grad_();
  const DeviceCheckGuard guard(c10::Device(c10::kCPU), {{"x", x}});
  at::linear(x, at::ones({4, 3})).sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

}  // namespace
}  // namespace bellows
