#include "bellows/core/text.h"

#include <limits>

#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows {
namespace {

using Words = std::vector<std::string>;

struct GroupedDigits : std::numpunct<char> {
  char do_thousands_sep() const override { return '.'; }
  char do_decimal_point() const override { return ','; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(TextTest, ConcatJoinsWhateverCanBeWritten) {
  EXPECT_EQ(concat("got ", 3, " of ", 4.5, '!'), "got 3 of 4.5!");
}

TEST(TextTest, ConcatIgnoresTheProgramsLocale) {
  const std::locale before = std::locale::global(std::locale(std::locale(), new GroupedDigits));
  const std::string text = concat(60000, " ", 0.5);
  std::locale::global(before);
  EXPECT_EQ(text, "60000 0.5");
}

TEST(TextTest, JoinSeparatesWords) {
  EXPECT_EQ(join(Words{}), "");
  EXPECT_EQ(join(Words{"a"}), "a");
  EXPECT_EQ(join(Words{"a", "b", "c"}), "a, b, c");
  EXPECT_EQ(join(Words{"a", "b"}, " | "), "a | b");
}

TEST(TextTest, NearestFindsOneEditOfEachKind) {
  const Words words = {"momentum", "weight_decay", "lr", "width"};
  EXPECT_EQ(nearest("widht", words), "width");   // swap
  EXPECT_EQ(nearest("widh", words), "width");    // missing letter
  EXPECT_EQ(nearest("widtth", words), "width");  // extra letter
  EXPECT_EQ(nearest("wodth", words), "width");   // wrong letter
  EXPECT_EQ(nearest("weight-decay", words), "weight_decay");
}

TEST(TextTest, NearestCountsASwapAsOneEdit) {
  // Both candidates are two substitutions away, but only the second is one swap away.
  EXPECT_EQ(nearest("ab", Words{"ba"}), "ba");
  EXPECT_EQ(nearest("abcd", Words{"abxy", "abdc"}), "abdc");
}

TEST(TextTest, NearestIgnoresCase) {
  EXPECT_EQ(nearest("SGD", Words{"adam", "sgd"}), "sgd");
}

TEST(TextTest, NearestGivesNothingBeyondAThirdOfTheLongerLength) {
  EXPECT_EQ(nearest("abcxyz", Words{"abcdef"}), "");           // 3 edits > 2
  EXPECT_EQ(nearest("abcdyz", Words{"abcdef"}), "abcdef");     // 2 edits <= 2
  EXPECT_EQ(nearest("abcdxyz", Words{"abcdefg"}), "abcdefg");  // 3 edits <= ceil(7 / 3)
  EXPECT_EQ(nearest("depth", Words{"momentum", "lr"}), "");
  EXPECT_EQ(nearest("x", Words{}), "");
}

TEST(TextTest, NearestPrefersTheFirstOfEqualCandidates) {
  EXPECT_EQ(nearest("conv", Words{"conv1", "conv2"}), "conv1");
  EXPECT_EQ(nearest("conv2", Words{"conv1", "conv2"}), "conv2");
}

TEST(TextTest, HumanBytesPicksTheUnit) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(1024.0 * 1024 - 1), "1.0 MiB");  // never "1024.0 KiB"
  EXPECT_EQ(human_bytes(8.0 * (int64_t{1} << 30)), "8.0 GiB");
  EXPECT_EQ(human_bytes(-2048), "-2.0 KiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<double>::infinity()), "inf EiB");
}

TEST(TextTest, ParseBytesReadsBothFamiliesOfUnits) {
  EXPECT_EQ(parse_bytes("4194304", "x"), 4194304);
  EXPECT_EQ(parse_bytes("512B", "x"), 512);
  EXPECT_EQ(parse_bytes("64KiB", "x"), 64 << 10);
  EXPECT_EQ(parse_bytes("4MiB", "x"), 4 << 20);
  EXPECT_EQ(parse_bytes("1.5 gib", "x"), int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("2TiB", "x"), int64_t{2} << 40);
  EXPECT_EQ(parse_bytes("500MB", "x"), 500'000'000);
  EXPECT_EQ(parse_bytes("8GB", "x"), 8'000'000'000);
}

TEST(TextTest, ParseBytesNamesWhatItCannotRead) {
  for (const char* wrong :
       {"", "MiB", "4 M", "4MiBs", "0", "-3MiB", "nan", "inf", "1e30GiB", "0.2", "4 4", "4GiB 2"}) {
    try {
      parse_bytes(wrong, "BELLOWS_SIM_MEMORY");
      ADD_FAILURE() << wrong;
    } catch (const ValueError& error) {
      EXPECT_NE(std::string(error.what())
                    .find(concat("BELLOWS_SIM_MEMORY: got '", wrong, "', expected a size")),
                std::string::npos);
    }
  }
}

TEST(TextTest, HumanSecondsWritesMinutesAndHours) {
  EXPECT_EQ(human_seconds(0), "0:00");
  EXPECT_EQ(human_seconds(9.4), "0:09");
  EXPECT_EQ(human_seconds(59.6), "1:00");
  EXPECT_EQ(human_seconds(75.2), "1:15");
  EXPECT_EQ(human_seconds(3725), "1:02:05");
  EXPECT_EQ(human_seconds(360000), "100:00:00");
  EXPECT_EQ(human_seconds(-75), "-1:15");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::quiet_NaN()), "unknown");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::infinity()), "unknown");
}

}  // namespace
}  // namespace bellows
