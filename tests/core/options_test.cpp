#include "bellows/core/options.h"

#include <cstdlib>
#include <limits>

#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows {
namespace {

using Ints = std::vector<int64_t>;
using Doubles = std::vector<double>;
using Words = std::vector<std::string>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class Fn>
std::string message_of(Fn fn) {
  try {
    fn();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

Options model_with(OptionValue width) {
  Options options("model");
  options.set("width", std::move(width), "demo.toml:12");
  return options;
}

TEST(OptionsTest, GivesTheValueThatWasSetOrTheFallback) {
  Options options = model_with(int64_t{64});
  EXPECT_EQ(options.get<int64_t>("width", 8), 64);
  EXPECT_EQ(options.get<int64_t>("depth", 2), 2);
  EXPECT_EQ(options.get<std::string>("name", "mlp"), "mlp");
  EXPECT_TRUE(options.has("width"));
  EXPECT_FALSE(options.has("depth"));
}

TEST(OptionsTest, LaterSetReplacesValueAndOrigin) {
  Options options = model_with(int64_t{64});
  options.set("width", "wide", "--set");
  EXPECT_EQ(message_of([&] { options.get<int64_t>("width", 8); }),
            "--set: model.width: got string \"wide\", expected integer");
}

TEST(OptionsTest, WrongTypeNamesOriginKeyValueAndExpectedType) {
  EXPECT_EQ(message_of([] { model_with("abc").get<int64_t>("width", 8); }),
            "demo.toml:12: model.width: got string \"abc\", expected integer");
  EXPECT_EQ(message_of([] { model_with(true).get<double>("width", 8); }),
            "demo.toml:12: model.width: got boolean true, expected number");
  EXPECT_EQ(message_of([] { model_with(0.5).get<int64_t>("width", 8); }),
            "demo.toml:12: model.width: got number 0.5, expected integer");
  EXPECT_EQ(message_of([] { model_with(int64_t{1}).get<bool>("width", false); }),
            "demo.toml:12: model.width: got integer 1, expected boolean");
  EXPECT_EQ(message_of([] {
              model_with(Ints{1, 2}).get<std::string>("width", "");
            }),
            "demo.toml:12: model.width: got list of integers [1, 2], expected string");
  EXPECT_EQ(message_of([] { model_with(Words{"a"}).get<Ints>("width", {}); }),
            "demo.toml:12: model.width: got list of strings [\"a\"], expected list of integers");
  EXPECT_EQ(message_of([] { model_with(Ints{}).get<int64_t>("width", 1); }),
            "demo.toml:12: model.width: got empty list [], expected integer");
}

TEST(OptionsTest, WithoutTableOrOriginTheErrorNamesTheKeyAlone) {
  Options options;
  options.set("seed", 0.5);
  EXPECT_EQ(message_of([&] { options.get<int64_t>("seed", 0); }),
            "seed: got number 0.5, expected integer");
}

TEST(OptionsTest, LongValueIsCutInTheError) {
  const std::string message =
      message_of([] { model_with(std::string(1000, 'x')).get<bool>("width", true); });
  EXPECT_LT(message.size(), 200u);
  EXPECT_NE(message.find("xxx..., expected boolean"), std::string::npos) << message;
}

TEST(OptionsTest, WholeNumberIsAcceptedAsDouble) {
  Options options = model_with(int64_t{3});
  EXPECT_EQ(options.get<double>("width", 0.5), 3.0);
  EXPECT_EQ(options.resolved().at("width"), OptionValue(3.0));
}

TEST(OptionsTest, ListOfIntegersIsAcceptedAsListOfDoubles) {
  EXPECT_EQ(model_with(Ints{1, 2}).get<Doubles>("width", {}), (Doubles{1, 2}));
  EXPECT_EQ(message_of([] { model_with(Doubles{1.5}).get<Ints>("width", {}); }),
            "demo.toml:12: model.width: got list of numbers [1.5], expected list of integers");
}

TEST(OptionsTest, EmptyListIsOneOfAnyType) {
  EXPECT_EQ(model_with(Ints{}).get<Words>("width", {"a"}), Words{});
  EXPECT_EQ(model_with(Words{}).get<Doubles>("width", {0.5}), Doubles{});
  EXPECT_EQ(model_with(Words{}).get<Ints>("width", {5}), Ints{});
}

TEST(OptionsTest, ValueInRangeIsGivenAndLimitsBelongToIt) {
  EXPECT_EQ(model_with(0.0).get_in<double>("width", 0.5, 0, 1), 0.0);
  EXPECT_EQ(model_with(1.0).get_in<double>("width", 0.5, 0, 1), 1.0);
  EXPECT_EQ(model_with(int64_t{4}).get_in<int64_t>("width", 1, 1, 4), 4);
}

TEST(OptionsTest, ValueOutOfRangeNamesTheRange) {
  EXPECT_EQ(message_of([] { model_with(1.5).get_in<double>("width", 0.5, 0, 1); }),
            "demo.toml:12: model.width: got 1.5, expected 0.0 to 1.0");
  EXPECT_EQ(message_of([] { model_with(-0.5).get_in<double>("width", 0.5, 0, kInfinity); }),
            "demo.toml:12: model.width: got -0.5, expected at least 0.0");
  EXPECT_EQ(message_of([] { model_with(int64_t{0}).get_in<int64_t>("width", 1, 1, INT64_MAX); }),
            "demo.toml:12: model.width: got 0, expected at least 1");
  EXPECT_EQ(message_of([] { model_with(int64_t{9}).get_in<int64_t>("width", 1, INT64_MIN, 8); }),
            "demo.toml:12: model.width: got 9, expected at most 8");
}

TEST(OptionsTest, NotANumberIsInNoRange) {
  EXPECT_EQ(
      message_of([] { model_with(kNan).get_in<double>("width", 0.5, -kInfinity, kInfinity); }),
      "demo.toml:12: model.width: got nan, expected a number");
}

TEST(OptionsTest, WordOutsideTheListNamesTheListAndTheNearest) {
  const Words words = {"sgd", "adam", "adamw"};
  EXPECT_EQ(model_with("adam").get_one_of("width", "sgd", words), "adam");
  EXPECT_EQ(model_with("adam").get_one_of("other", "sgd", words), "sgd");
  EXPECT_EQ(message_of([&] { model_with("adamx").get_one_of("width", "sgd", words); }),
            "demo.toml:12: model.width: got \"adamx\", expected one of sgd, adam, adamw; "
            "did you mean adam?");
  EXPECT_EQ(message_of([&] { model_with("lion").get_one_of("width", "sgd", words); }),
            "demo.toml:12: model.width: got \"lion\", expected one of sgd, adam, adamw");
}

TEST(OptionsTest, FindTellsPresentFromAbsent) {
  Options options = model_with(int64_t{3});
  EXPECT_EQ(options.find<int64_t>("width"), 3);
  EXPECT_EQ(options.find<int64_t>("depth"), std::nullopt);
  EXPECT_EQ(message_of([&] { options.find<bool>("width"); }),
            "demo.toml:12: model.width: got integer 3, expected boolean");
}

TEST(OptionsTest, UnknownKeyNamesTheNearestKnownOne) {
  Options options("model");
  options.set("widht", int64_t{3}, "demo.toml:3");
  options.get<int64_t>("width", 8);
  options.get<int64_t>("depth", 2);
  EXPECT_EQ(message_of([&] { options.reject_unknown(); }),
            "demo.toml:3: unknown key model.widht; did you mean model.width?");
}

TEST(OptionsTest, SharedTableNameDoesNotMakeKeysNear) {
  Options options("a_long_table_name");
  options.set("lr", 0.1, "demo.toml:3");
  options.get<int64_t>("depth", 2);
  EXPECT_EQ(message_of([&] { options.reject_unknown(); }),
            "demo.toml:3: unknown key a_long_table_name.lr; known keys: a_long_table_name.depth");
}

TEST(OptionsTest, UnknownKeyFarFromAllListsTheKnownOnes) {
  Options options("model");
  options.set("momentum", 0.9, "demo.toml:3");
  options.get<int64_t>("width", 8);
  options.find<int64_t>("depth");
  EXPECT_EQ(message_of([&] { options.reject_unknown(); }),
            "demo.toml:3: unknown key model.momentum; known keys: model.depth, model.width");
}

TEST(OptionsTest, UnknownKeyInATableThatTakesNone) {
  Options options("model");
  options.set("momentum", 0.9);
  EXPECT_EQ(message_of([&] { options.reject_unknown(); }),
            "unknown key model.momentum; no keys are known here");
}

TEST(OptionsTest, NothingIsUnknownOnceEveryKeyWasAskedFor) {
  Options options = model_with(int64_t{3});
  options.find<int64_t>("width");
  EXPECT_NO_THROW(options.reject_unknown());
}

TEST(OptionsTest, ResolvedHoldsValuesInForceButNotAbsentOnes) {
  Options options = model_with(int64_t{3});
  options.get<int64_t>("width", 8);
  options.get<double>("dropout", 0.1);
  options.find<int64_t>("depth");
  const std::map<std::string, OptionValue> expected = {{"dropout", 0.1}, {"width", int64_t{3}}};
  EXPECT_EQ(options.resolved(), expected);
}

TEST(OptionsTest, FailNamesOriginAndKey) {
  EXPECT_EQ(message_of([] { model_with(int64_t{3}).fail("width", "must be even"); }),
            "demo.toml:12: model.width: must be even");
  EXPECT_EQ(message_of([] { model_with(int64_t{3}).fail("depth", "is needed"); }),
            "model.depth: is needed");
}

TEST(OptionsTest, TomlOfEachType) {
  EXPECT_EQ(to_toml(true), "true");
  EXPECT_EQ(to_toml(false), "false");
  EXPECT_EQ(to_toml(int64_t{-3}), "-3");
  EXPECT_EQ(to_toml("text"), "\"text\"");
  EXPECT_EQ(to_toml(Ints{1, 2}), "[1, 2]");
  EXPECT_EQ(to_toml(Doubles{1, 0.5}), "[1.0, 0.5]");
  EXPECT_EQ(to_toml(Words{"a", "b"}), "[\"a\", \"b\"]");
  EXPECT_EQ(to_toml(Words{}), "[]");
}

TEST(OptionsTest, TomlDoubleIsShortestAndNeverLooksLikeAnInteger) {
  EXPECT_EQ(to_toml(0.1), "0.1");
  EXPECT_EQ(to_toml(3.0), "3.0");
  EXPECT_EQ(to_toml(-0.0), "-0.0");
  EXPECT_EQ(to_toml(1e-5), "1e-05");
  EXPECT_EQ(to_toml(1e300), "1e+300");
  EXPECT_EQ(to_toml(123456789.0), "123456789.0");
  EXPECT_EQ(to_toml(kInfinity), "inf");
  EXPECT_EQ(to_toml(-kInfinity), "-inf");
  EXPECT_EQ(to_toml(kNan), "nan");
}

TEST(OptionsTest, TomlDoubleReadsBackAsTheSameBits) {
  for (double value : {1.0 / 3, 2.0 / 3 * 1e-300, std::numeric_limits<double>::max(),
                       std::numeric_limits<double>::denorm_min(), 0.1 + 0.2}) {
    EXPECT_EQ(std::strtod(to_toml(value).c_str(), nullptr), value);
  }
}

TEST(OptionsTest, TomlStringIsEscaped) {
  EXPECT_EQ(to_toml("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(to_toml("\b\t\n\f\r"), R"("\b\t\n\f\r")");
  EXPECT_EQ(to_toml(std::string("\0\x1f\x7f", 3)), R"("\u0000\u001F\u007F")");
  EXPECT_EQ(to_toml("größe"), "\"größe\"");
}

}  // namespace
}  // namespace bellows
