#include "bellows/parallel/mesh.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/parallel/init.h"

namespace bellows::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(std::vector<MeshDimension> dimensions) {
  try {
    const Mesh mesh(Group(), std::move(dimensions));
  } catch (const ValueError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MeshTest, LinesOfAGrid) {
  run_threads(4, [](const Group& world) {
    Mesh mesh(world, {{"replica", 2}, {"shard", -1}});
    EXPECT_EQ(mesh.size("shard"), 2);
    EXPECT_THAT(mesh.coordinates(), ElementsAre(world.rank() / 2, world.rank() % 2));
    EXPECT_EQ(mesh.coordinate("shard"), world.rank() % 2);
    EXPECT_THAT(mesh.group("replica").world_ranks(),
                ElementsAre(world.rank() % 2, world.rank() % 2 + 2));
    EXPECT_EQ(mesh.group("replica").rank(), mesh.coordinate("replica"));
    const at::Tensor sum = mesh.group("shard").all_reduced(at::full({1}, world.rank()));
    EXPECT_EQ(sum.item<int64_t>(), world.rank() < 2 ? 1 : 5);
    const Group all = mesh.flatten({"shard", "replica"});
    EXPECT_THAT(all.world_ranks(), ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(mesh.flatten({"replica", "shard"}).state(), all.state());
    EXPECT_EQ(mesh.flatten({"shard"}).state(), mesh.group("shard").state());
  });
}

TEST(MeshTest, FlatteningLeavesOutTheOtherDimensions) {
  run_threads(4, [](const Group& world) {
    Mesh mesh(world, {{"a", 2}, {"b", 1}, {"c", 2}});
    EXPECT_EQ(mesh.flatten({"a", "b"}).size(), 2);
    EXPECT_THAT(mesh.flatten({"a", "b"}).world_ranks(),
                ElementsAre(world.rank() % 2, world.rank() % 2 + 2));
  });
}

TEST(MeshTest, OneProcessIsAMeshOfOnes) {
  const Mesh mesh(Group(), {{"replica", 1}, {"shard", -1}});
  EXPECT_EQ(mesh.group("shard").size(), 1);
  EXPECT_THAT(mesh.coordinates(), ElementsAre(0, 0));
}

TEST(MeshTest, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(refusal({{"a", 2}}),
              HasSubstr("the product of the sizes must be the number of ranks, 1"));
  EXPECT_THAT(refusal({{"a", 2}, {"b", -1}}), HasSubstr("must divide"));
  EXPECT_THAT(refusal({{"a", int64_t{1} << 40}, {"b", int64_t{1} << 40}}), HasSubstr("must be"));
  EXPECT_THAT(refusal({{"a", -1}, {"b", -1}}), HasSubstr("only one size"));
  EXPECT_THAT(refusal({{"a", 0}}), HasSubstr("at least 1"));
  EXPECT_THAT(refusal({}), HasSubstr("at least one dimension"));
  EXPECT_THAT(refusal({{"a", 1}, {"a", 1}}), HasSubstr("twice"));
  EXPECT_THAT(refusal({{"a/b", 1}}), HasSubstr("a/b"));
  const Mesh mesh(Group(), {{"replica", 1}, {"shard", 1}});
  try {
    (void)mesh.group("shards");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'shard'?"));
  }
}

}  // namespace
}  // namespace bellows::parallel
