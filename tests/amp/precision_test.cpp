#include "bellows/amp/precision.h"

#include <gmock/gmock.h>

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/support/message_of.h"

namespace bellows::amp {
namespace {

using bellows::testing::message_of;
using ::testing::HasSubstr;

TEST(PrecisionTest, EveryNameIsReadAndWrittenBack) {
  for (const char* name : {"fp32", "tf32", "bf16", "fp16", "bf16-true"})
    EXPECT_EQ(precision_name(parse_precision(name)), name);
}

TEST(PrecisionTest, AnotherWordIsAnsweredWithTheNearest) {
  EXPECT_THAT(message_of<ValueError>([] { parse_precision("bf61"); }),
              ::testing::AllOf(HasSubstr("got 'bf61'"), HasSubstr("fp32, tf32, bf16"),
                               HasSubstr("did you mean 'bf16'")));
}

TEST(PrecisionTest, EachConsistsOfWhatItSays) {
  const auto bf16 = settings_of(Precision::bf16), fp16 = settings_of(Precision::fp16);
  EXPECT_EQ(bf16.autocast, at::kBFloat16);
  EXPECT_FALSE(bf16.scaler);
  EXPECT_EQ(fp16.autocast, at::kHalf);
  EXPECT_TRUE(fp16.scaler);
  EXPECT_FALSE(settings_of(Precision::fp32).allow_tf32);
  EXPECT_TRUE(settings_of(Precision::tf32).allow_tf32);
  const auto whole = settings_of(Precision::bf16_true);
  EXPECT_EQ(whole.parameters, at::kBFloat16);
  EXPECT_FALSE(whole.autocast.has_value());
  for (const auto other : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
    EXPECT_EQ(settings_of(other).parameters, at::kFloat);
}

TEST(PrecisionTest, Tf32IsSwitchedForTheProcessAndNothingIsPrinted) {
  ::testing::internal::CaptureStderr();
  set_allow_tf32(true);
  EXPECT_TRUE(at::globalContext().allowTF32CuBLAS());
  EXPECT_TRUE(at::globalContext().allowTF32CuDNN());
  set_allow_tf32(false);
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
  EXPECT_FALSE(at::globalContext().allowTF32CuDNN());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(PrecisionTest, TensorsAreConvertedUnderAllTheirHandles) {
  const at::Tensor weight = at::full({2}, 1.5).set_requires_grad(true), handle = weight;
  const at::Tensor count = at::ones({1}, at::kLong);
  weight.sum().backward();
  convert({{"weight", weight}, {"count", count}}, at::kBFloat16);
  EXPECT_EQ(handle.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(handle.requires_grad());
  EXPECT_FALSE(handle.grad().defined());
  EXPECT_EQ(count.scalar_type(), at::kLong);
  handle.pow(2).sum().backward();
  EXPECT_EQ(handle.grad().scalar_type(), at::kBFloat16);
}

TEST(PrecisionTest, OnlyFloatingPointInputsAreCast) {
  const Tree input = Tree::List{at::ones({2}), at::ones({2}, at::kLong), 3};
  const Tree cast = cast_floating(input, at::kBFloat16);
  EXPECT_EQ(cast[0].tensor().scalar_type(), at::kBFloat16);
  EXPECT_EQ(cast[1].tensor().scalar_type(), at::kLong);
  EXPECT_EQ(cast[2].integer(), 3);
}

}  // namespace
}  // namespace bellows::amp
