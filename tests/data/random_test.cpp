#include "bellows/data/random.h"

#include <array>
#include <cmath>
#include <gmock/gmock.h>
#include <set>

#include <gtest/gtest.h>

namespace bellows::data {
namespace {

using ::testing::ElementsAre;

// The known answers published with Random123 (kat_vectors).
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_THAT(philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  const uint32_t ones = 0xffffffffu;
  EXPECT_THAT(philox4x32({ones, ones, ones, ones}, {ones, ones}),
              ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(
      philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
      ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(RandomTest, NumbersDependOnTheWholeKey) {
  std::set<std::array<uint32_t, 3>> seen;
  int64_t keys = 0;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
    for (const int64_t epoch : {0, 1, 7}) {
      for (const int64_t index : {int64_t{0}, int64_t{1}, int64_t{1} << 40, int64_t{-1}}) {
        Random random(seed, epoch, index);
        seen.insert({random.bits(), random.bits(), random.bits()});
        ++keys;
      }
    }
  }
  EXPECT_EQ(std::ssize(seen), keys);
  Random a(5, 6, 7), b(5, 6, 7);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a.bits(), b.bits());
}

TEST(RandomTest, DrawsStayInRangeAndHaveTheirMeans) {
  constexpr int kDraws = 200'000;
  double sum = 0, normal_sum = 0, normal_squares = 0;
  std::array<int, 7> counts{};
  int heads = 0;
  Random random(1, 2, 3);
  for (int i = 0; i < kDraws; ++i) {
    const double value = random.uniform(-1, 3);
    ASSERT_GE(value, -1);
    ASSERT_LT(value, 3);
    sum += value;
    ++counts.at(static_cast<size_t>(random.below(7)));
    const double normal = random.normal();
    ASSERT_TRUE(std::isfinite(normal));
    normal_sum += normal;
    normal_squares += normal * normal;
    heads += random.chance(0.25) ? 1 : 0;
  }
  // Five standard deviations of each mean.
  const double root = std::sqrt(static_cast<double>(kDraws));
  EXPECT_NEAR(sum / kDraws, 1, 5 * 1.155 / root);
  EXPECT_NEAR(normal_sum / kDraws, 0, 5 / root);
  EXPECT_NEAR(normal_squares / kDraws, 1, 5 * 1.42 / root);
  EXPECT_NEAR(1.0 * heads / kDraws, 0.25, 5 * 0.434 / root);
  for (const int count : counts) EXPECT_NEAR(1.0 * count / kDraws, 1.0 / 7, 5 * 0.35 / root);
}

TEST(RandomTest, NeighbouringSamplesAreNotAlike) {
  double product = 0;
  constexpr int kSamples = 100'000;
  for (int64_t index = 0; index < kSamples; ++index) {
    product += (Random(0, 0, index).uniform() - 0.5) * (Random(0, 0, index + 1).uniform() - 0.5);
  }
  EXPECT_NEAR(product / kSamples, 0, 5.0 / 12 / std::sqrt(kSamples));
}

}  // namespace
}  // namespace bellows::data
