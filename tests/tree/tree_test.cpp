#include "bellows/tree/tree.h"

#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows {
namespace {

using Names = std::vector<std::string>;

Tree sample() {
  return Tree::Dict{
      {"image", at::zeros({2, 3})},
      {"label", 7},
      {"pair", Tree::List{at::full({1}, 5.0), "text", Tree::Dict{{"x", at::zeros({})}}}}};
}

template <class Fn>
std::string message_of(Fn fn) {
  try {
    fn();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TreeTest, EachKindKnowsItselfAndItsValue) {
  EXPECT_TRUE(Tree().empty());
  EXPECT_TRUE(Tree(at::zeros({2})).is_tensor());
  EXPECT_TRUE(Tree(true).is_bool());
  EXPECT_TRUE(Tree(3).is_int());
  EXPECT_TRUE(Tree(int64_t{3}).is_int());
  EXPECT_TRUE(Tree(0.5).is_double());
  EXPECT_TRUE(Tree(0.5f).is_double());
  EXPECT_TRUE(Tree("text").is_string());
  EXPECT_TRUE(Tree(Tree::List{}).is_list());
  EXPECT_TRUE(Tree(Tree::Dict{}).is_dict());
  EXPECT_EQ(Tree(true).boolean(), true);
  EXPECT_EQ(Tree(int64_t{1} << 40).integer(), int64_t{1} << 40);
  EXPECT_EQ(Tree(0.5).number(), 0.5);
  EXPECT_EQ(Tree(3).number(), 3.0);
  EXPECT_EQ(Tree("text").string(), "text");
}

TEST(TreeTest, KindNamesWhatIsThere) {
  const Tree::List all = {Tree(), at::zeros({2}), true, 3, 0.5, "text", Tree::List{}, Tree::Dict{}};
  Names kinds;
  for (const Tree& tree : all) kinds.emplace_back(tree.kind());
  EXPECT_EQ(kinds, (Names{"nothing", "tensor", "bool", "integer", "double", "string", "list",
                          "dictionary"}));
}

TEST(TreeTest, WrongAccessNamesWhatIsThereInstead) {
  EXPECT_EQ(message_of([] {
              Tree(at::zeros({2, 3})).integer();
            }),
            "tree: got a tensor of shape [2, 3], expected an integer");
  EXPECT_EQ(message_of([] { Tree(at::Tensor()).list(); }),
            "tree: got an undefined tensor, expected a list");
  EXPECT_EQ(message_of([] { Tree("abc").tensor(); }),
            "tree: got the string \"abc\", expected a tensor");
  EXPECT_EQ(message_of([] { Tree(true).integer(); }),
            "tree: got the bool true, expected an integer");
  EXPECT_EQ(message_of([] { Tree(3).boolean(); }), "tree: got the integer 3, expected a bool");
  EXPECT_EQ(message_of([] { Tree(0.5).integer(); }),
            "tree: got the double 0.5, expected an integer");
  EXPECT_EQ(message_of([] { Tree().dict(); }), "tree: got nothing, expected a dictionary");
  EXPECT_EQ(message_of([] {
              Tree(Tree::List{1, 2}).number();
            }),
            "tree: got a list of length 2, expected a number");
  EXPECT_EQ(message_of([] { sample().string(); }),
            "tree: got a dictionary with keys image, label, pair, expected a string");
}

TEST(TreeTest, ElementsAreReachedByIndexAndKey) {
  const Tree tree = sample();
  EXPECT_EQ(tree.at("label").integer(), 7);
  EXPECT_EQ(tree.at("pair")[1].string(), "text");
  EXPECT_TRUE(tree.at("pair")[2].contains("x"));
  EXPECT_FALSE(tree.contains("x"));
  EXPECT_FALSE(Tree(3).contains("x"));
}

TEST(TreeTest, AbsentKeyListsTheKeysAndTheNearest) {
  EXPECT_EQ(message_of([] { sample().at("lable"); }),
            "tree: got key \"lable\", expected one of a dictionary with keys image, label, pair; "
            "did you mean label?");
  EXPECT_EQ(message_of([] { Tree(Tree::Dict{}).at("x"); }),
            "tree: got key \"x\", expected one of a dictionary with no keys");
  EXPECT_EQ(message_of([] { Tree(3).at("x"); }), "tree: got the integer 3, expected a dictionary");
}

TEST(TreeTest, IndexOutOfRangeNamesTheLength) {
  EXPECT_EQ(message_of([] { sample().at("pair")[3]; }),
            "tree: got index 3, expected one below 3, the length of the list");
  EXPECT_EQ(message_of([] { sample()[0]; }),
            "tree: got a dictionary with keys image, label, pair, expected a list");
}

TEST(TreeTest, CopySharesTensorsButNotStructure) {
  Tree tree = sample();
  Tree copy = tree;
  EXPECT_TRUE(copy.at("image").tensor().is_same(tree.at("image").tensor()));
  copy.dict().erase("image");
  copy.dict().at("pair").list().clear();
  EXPECT_TRUE(tree.contains("image"));
  EXPECT_EQ(tree.at("pair").list().size(), 3u);
}

TEST(TreeTest, MapReplacesTensorsAndKeepsTheRest) {
  const Tree tree = sample();
  const Tree mapped = tree.map([](const at::Tensor& t) { return at::add(t, 1); });
  EXPECT_EQ(mapped.at("label").integer(), 7);
  EXPECT_EQ(mapped.at("pair")[1].string(), "text");
  EXPECT_EQ(mapped.at("image").tensor().sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(mapped.at("pair")[0].tensor().item<double>(), 6.0);
  EXPECT_EQ(mapped.at("pair")[2].at("x").tensor().item<double>(), 1.0);
  EXPECT_EQ(tree.at("pair")[0].tensor().item<double>(), 5.0);  // the original is untouched
}

TEST(TreeTest, EveryTensorIsVisitedWithItsPathDepthFirst) {
  Names paths;
  std::vector<int64_t> sizes;
  sample().for_each_tensor([&](const std::string& path, const at::Tensor& tensor) {
    paths.push_back(path);
    sizes.push_back(tensor.numel());
  });
  EXPECT_EQ(paths, (Names{"image", "pair.0", "pair.2.x"}));
  EXPECT_EQ(sizes, (std::vector<int64_t>{6, 1, 1}));
}

TEST(TreeTest, TensorAloneHasAnEmptyPath) {
  Names paths;
  Tree(at::zeros({1})).for_each_tensor([&](const std::string& path, const at::Tensor&) {
    paths.push_back(path);
  });
  Tree(3).for_each_tensor(
      [&](const std::string&, const at::Tensor&) { paths.push_back("number"); });
  EXPECT_EQ(paths, Names{""});
}

}  // namespace
}  // namespace bellows
