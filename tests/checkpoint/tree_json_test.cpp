#include "bellows/checkpoint/tree_json.h"

#include <bit>
#include <cmath>
#include <gmock/gmock.h>
#include <limits>
#include <random>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "bellows/checkpoint/manifest.h"
#include "bellows/core/error.h"

namespace bellows::checkpoint {
namespace {

using ::testing::HasSubstr;

Tree there_and_back(const Tree& tree) {
  NamedTensors tensors;
  const std::string text = tree_to_json(tree, tensors);
  std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  EXPECT_EQ(by_name.size(), tensors.size()) << text;
  Tree back = tree_from_json(text, by_name);
  EXPECT_TRUE(by_name.empty()) << text;
  return back;
}

TEST(TreeJsonTest, DoublesKeepEveryBit) {
  std::mt19937_64 random(3);
  std::vector<double> values = {0.0,      -0.0, 1.0, 0.1, 1e22, 5e-324, 1.7976931348623157e308,
                                -2.5e-310};
  for (int i = 0; i < 2000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (std::isfinite(value)) values.push_back(value);
  }
  for (const double value : values) {
    const Tree back = there_and_back(value);
    ASSERT_TRUE(back.is_double()) << value;
    EXPECT_EQ(std::bit_cast<uint64_t>(back.number()), std::bit_cast<uint64_t>(value));
  }
}

TEST(TreeJsonTest, InfinitiesAndNanComeBack) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(there_and_back(kInfinity).number(), kInfinity);
  EXPECT_EQ(there_and_back(-kInfinity).number(), -kInfinity);
  EXPECT_TRUE(std::isnan(there_and_back(std::nan("")).number()));
}

TEST(TreeJsonTest, IntegersBoolsAndNothingKeepTheirKind) {
  for (const int64_t value : {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{0},
                              std::numeric_limits<int64_t>::max()}) {
    const Tree back = there_and_back(value);
    ASSERT_TRUE(back.is_int());
    EXPECT_EQ(back.integer(), value);
  }
  EXPECT_TRUE(there_and_back(true).boolean());
  EXPECT_TRUE(there_and_back(false).is_bool());
  EXPECT_TRUE(there_and_back(Tree()).empty());
  EXPECT_TRUE(there_and_back(Tree::List()).list().empty());
  EXPECT_TRUE(there_and_back(Tree::Dict()).dict().empty());
}

TEST(TreeJsonTest, TextOfAnyBytesComesBack) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  for (const std::string& text : {std::string(), std::string("é\"\\\n\0x", 7), all}) {
    EXPECT_EQ(there_and_back(text).string(), text);
    EXPECT_EQ(there_and_back(Tree::Dict{{text, 1}}).dict().begin()->first, text);
  }
}

TEST(TreeJsonTest, KeysThatLookLikeTheNotationAreKeys) {
  for (const char* key : {"$tensor", "$double", "$bytes", "$", "$$x", "$xff"}) {
    const Tree back = there_and_back(Tree::Dict{{key, "nan"}});
    ASSERT_TRUE(back.contains(key)) << key;
    EXPECT_EQ(back.at(key).string(), "nan");
  }
}

TEST(TreeJsonTest, TensorsAreNamedByTheirPath) {
  NamedTensors tensors;
  const at::Tensor value = at::full({2}, 3.0);
  const Tree tree = Tree::Dict{{"state", Tree::Dict{{"fc.weight", Tree::List{value, 1}}}}};
  tree_to_json(tree, tensors);
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors[0].first, "state.fc.weight.0");
  const Tree back = there_and_back(tree);
  EXPECT_TRUE(at::equal(back.at("state").at("fc.weight")[0].tensor(), value));
}

TEST(TreeJsonTest, PathsThatCoincideStayApart) {
  const Tree back = there_and_back(
      Tree::Dict{{"a", Tree::Dict{{"b", at::full({}, 1.0)}}}, {"a.b", at::full({}, 2.0)}});
  EXPECT_EQ(back.at("a").at("b").tensor().item<float>(), 1.0f);
  EXPECT_EQ(back.at("a.b").tensor().item<float>(), 2.0f);
  there_and_back(Tree::Dict{{"\xff", at::full({}, 1.0)}, {"__metadata__", at::full({}, 1.0)}});
  there_and_back(at::full({}, 1.0));
}

TEST(TreeJsonTest, UndefinedTensorsComeBackUndefined) {
  EXPECT_FALSE(there_and_back(at::Tensor()).tensor().defined());
}

TEST(TreeJsonTest, DeepNestsAreRefusedOnBothSides) {
  Tree deep = 1;
  for (int i = 0; i < 300; ++i) deep = Tree::List{deep};
  NamedTensors tensors;
  std::map<std::string, at::Tensor> none;
  EXPECT_THROW(tree_to_json(deep, tensors), ValueError);
  for (const size_t levels : {300, 1'000'000}) {  // the latter would exhaust a recursion's stack
    const std::string text = std::string(levels, '[') + std::string(levels, ']');
    EXPECT_THROW(tree_from_json(text, none), ValueError);
    std::string manifest =
        R"({"version":2,"step":0,"files":{},"parts":{"p":{"files":[],"state":)" + text + "}}";
    manifest += manifest_end(manifest);
    EXPECT_THROW(parse_manifest("checkpoint.json", manifest), CorruptFileError);
  }
}

TEST(TreeJsonTest, TheDeepestNestThatIsWrittenIsRead) {
  Tree deep = at::Tensor();
  for (int i = 0; i < 200; ++i) deep = Tree::List{deep};
  NamedTensors tensors;
  std::map<std::string, at::Tensor> none;
  const std::string text = tree_to_json(deep, tensors);
  EXPECT_EQ(tree_to_json(tree_from_json(text, none), tensors), text);
  std::string manifest =
      R"({"version":2,"step":0,"files":{},"parts":{"p":{"files":[],"state":{"value":)" + text +
      "}}}";
  manifest += manifest_end(manifest);
  EXPECT_NO_THROW(parse_manifest("checkpoint.json", manifest));
}

TEST(TreeJsonTest, OtherTextIsRefused) {
  for (const char* text : {"", "{", "18446744073709551615", R"({"$double":"x"})",
                           R"({"$double":1})", R"({"$bytes":"0"})", R"({"$bytes":"zz"})",
                           R"({"$tensor":"gone"})", R"({"$x0":1})", R"({"$other":1})"}) {
    std::map<std::string, at::Tensor> none;
    EXPECT_THROW(tree_from_json(text, none), ValueError) << text;
  }
}

}  // namespace
}  // namespace bellows::checkpoint
