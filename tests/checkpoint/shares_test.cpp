// Who writes what, where several processes write one checkpoint.
#include "bellows/checkpoint/shares.h"

#include <gmock/gmock.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "tests/support/process.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;
using bellows::testing::TemporaryFolder;
using ::testing::ElementsAre;

// Tensors of unlike sizes: one far larger than all others, empty ones, a 0-dim one, odd shapes.
Contents some_contents() {
  Contents contents;
  contents[kModelPart].tensors = {{"a", at::randn({3, 5})},
                                  {"empty", at::randn({0, 4})},
                                  {"large", at::randn({1001, 257})},
                                  {"scalar", at::randn({})},
                                  {"transposed", at::randn({300, 700}).t()},
                                  {"wide", at::randn({2, 90'000})}};
  contents["optimizer"] = {.state = R"({"x":1})", .tensors = {{"exp_avg", at::randn({1001, 257})}}};
  contents["random"] = {.state = "3", .tensors = {{"cpu", at::arange(5000)}}};
  contents["empty"] = {.state = "[]", .tensors = {}};
  return contents;
}

fs::path save_by(int64_t ranks, const fs::path& root, const Contents& contents) {
  Shares shares = plan_shares(7, contents, ranks);
  SharedDirectory directory(root, 7);
  std::map<std::string, Digest> digests;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    digests.merge(write_share(directory.path(), contents, shares, rank));
  }
  EXPECT_EQ(digests.size(), shares.manifest.files.size());
  shares.manifest.files = digests;
  return directory.commit(shares.manifest);
}

TEST(SharesTest, WhatManyWriteIsReadAsIfOneHadWrittenIt) {
  const Contents contents = some_contents();
  for (const int64_t ranks : {1, 2, 3, 4, 7, 40}) {
    const TemporaryFolder folder;
    const fs::path directory = save_by(ranks, folder.path(), contents);
    verify(directory);
    EXPECT_EQ(list(folder.path()), std::vector<fs::path>{directory});
    const Manifest manifest = read_manifest(directory);
    for (const auto& [name, part] : contents) {
      const PartContents read = read_part(directory, manifest, name);
      const std::map<std::string, at::Tensor> tensors(read.tensors.begin(), read.tensors.end());
      EXPECT_EQ(tensors.size(), part.tensors.size());
      EXPECT_EQ(read.state, part.state);
      for (const auto& [key, tensor] : part.tensors) {
        EXPECT_TRUE(at::equal(tensors.at(key), tensor)) << name << " " << key << " " << ranks;
      }
    }
  }
}

TEST(SharesTest, TheBytesAreSpreadEvenly) {
  const Contents contents = some_contents();
  for (const int64_t ranks : {2, 3, 5}) {
    const Shares shares = plan_shares(7, contents, ranks);
    std::map<int64_t, uint64_t> bytes;
    uint64_t all = 0;
    for (const auto& [file, pieces] : shares.files) {
      if (shares.part_of.at(file) == "random") continue;
      const NamedTensors& list = contents.at(shares.part_of.at(file)).tensors;
      const std::map<std::string, at::Tensor> tensors(list.begin(), list.end());
      for (const ShareOfTensor& piece : pieces) {
        const at::Tensor& tensor = tensors.at(piece.tensor);
        const uint64_t size =
            piece.rows < 0 ? tensor.nbytes() : tensor.nbytes() / tensor.size(0) * piece.rows;
        bytes[shares.writer.at(file)] += size;
        all += size;
      }
    }
    ASSERT_EQ(bytes.size(), ranks);
    for (const auto& [rank, own] : bytes) {
      // A row of "wide" is 360 kB, and no slice is smaller than kLeastSlice.
      EXPECT_NEAR(own, all / ranks, 450'000) << "rank " << rank << " of " << ranks;
    }
  }
}

TEST(SharesTest, OnlyWeightsAndOptimizerAreSpread) {
  const Shares shares = plan_shares(7, some_contents(), 3);
  EXPECT_THAT(shares.manifest.parts.at("random").files, ElementsAre("random.safetensors"));
  EXPECT_EQ(shares.writer.at("random.safetensors"), 0);
  EXPECT_THAT(
      shares.manifest.parts.at("optimizer").files,
      ElementsAre("optimizer-00001-of-00003.safetensors", "optimizer-00002-of-00003.safetensors",
                  "optimizer-00003-of-00003.safetensors"));
  EXPECT_TRUE(shares.manifest.parts.at("empty").files.empty());
}

TEST(SharesTest, WhatIsNotCommittedLeavesNothing) {
  const TemporaryFolder folder;
  const Contents contents = some_contents();
  {
    const Shares shares = plan_shares(7, contents, 2);
    const SharedDirectory directory(folder.path(), 7);
    write_share(directory.path(), contents, shares, 1);
    EXPECT_FALSE(fs::is_empty(folder.path()));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace bellows::checkpoint
