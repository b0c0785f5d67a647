#include "bellows/data/tokens.h"

#include <gmock/gmock.h>
#include <string>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/loader.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::message_of;
using test::TemporaryFolder;
using ::testing::HasSubstr;

std::string tokens16(int first, int count) {
  std::string bytes;
  for (int token = first; token < first + count; ++token)
    bytes += {static_cast<char>(token & 0xff), static_cast<char>(token >> 8)};
  return bytes;
}

class TokensTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
};

TEST_F(TokensTest, SamplesAreWindowsAndTargetsAreOneAhead) {
  const auto path = folder_.write("file", tokens16(300, 13));
  const TokenDataset dataset({path}, {.context = 4});
  EXPECT_EQ(dataset.size(), 3);
  EXPECT_EQ(dataset.tokens(), 13);
  EXPECT_TRUE(at::equal(dataset.get(2)[0].tensor(), at::arange(308, 312)));
  EXPECT_TRUE(at::equal(dataset.get(2)[1].tensor(), at::arange(309, 313)));
  const Tree batch = dataset.get_batch(std::array<int64_t, 2>{1, 0});
  EXPECT_TRUE(
      at::equal(batch[1].tensor(), at::stack({at::arange(305, 309), at::arange(301, 305)})));
  const TokenDataset overlapping({path}, {.context = 4, .stride = 1});
  EXPECT_EQ(overlapping.size(), 9);
  EXPECT_TRUE(at::equal(overlapping.get(8)[1].tensor(), at::arange(309, 313)));
}

TEST_F(TokensTest, SamplesDoNotCrossFiles) {
  const auto first = folder_.write("first", tokens16(0, 9));
  const auto second = folder_.write("second", tokens16(100, 5));
  const TokenDataset dataset({first, second}, {.context = 4});
  EXPECT_EQ(dataset.size(), 3);
  EXPECT_TRUE(at::equal(dataset.get(2)[0].tensor(), at::arange(100, 104)));
  EXPECT_EQ(dataset.source(2), second.string() + " from token 0");
  EXPECT_EQ(dataset.source(1), first.string() + " from token 4");
}

TEST_F(TokensTest, FourBytesAToken) {
  const auto path = folder_.write("file", std::string("\1\0\0\0\0\0\1\0\3\0\0\0", 12));
  const TokenDataset dataset({path}, {.type = TokenType::uint32, .context = 2});
  EXPECT_EQ(dataset.get(0)[0].tensor()[1].item<int64_t>(), 65536);
  EXPECT_EQ(dataset.get(0)[1].tensor()[1].item<int64_t>(), 3);
}

TEST_F(TokensTest, TokensOutOfTheVocabularyNameFileAndPlace) {
  const auto path = folder_.write("file", tokens16(0, 21));
  const TokenDataset dataset({path}, {.context = 4, .vocabulary = 13});
  EXPECT_EQ(dataset.get(2)[1].tensor()[3].item<int64_t>(), 12);
  const std::string expected = path.string() + ": token 13 is 13, expected 0 to 12";
  EXPECT_EQ(message_of<CorruptFileError>([&] { dataset.get(3); }), expected);
  EXPECT_EQ(message_of<CorruptFileError>([&] { dataset.get(4); }),
            path.string() + ": token 16 is 16, expected 0 to 12");
  const auto loader =
      make_loader(std::make_shared<TokenDataset>(std::vector<std::filesystem::path>{path},
                                                 TokenOptions{.context = 4, .vocabulary = 13}),
                  std::make_shared<SequentialSampler>(5), {.batch_size = 5, .workers = 1});
  EXPECT_EQ(message_of<SampleError>([&] { loader->next(); }), "sample 3: " + expected);
}

TEST_F(TokensTest, FilesAndOptionsThatCannotServeAreRefused) {
  const auto odd = folder_.write("odd", "123456789");
  EXPECT_EQ(message_of<CorruptFileError>([&] { TokenDataset({odd}, {.context = 2}); }),
            odd.string() + ": got 9 bytes, expected a multiple of 2, the size of a token");
  const auto small = folder_.write("small", tokens16(0, 4));
  EXPECT_EQ(message_of<CorruptFileError>([&] { TokenDataset({small}, {.context = 4}); }),
            small.string() + ": got 4 tokens, expected at least 5 for one sample");
  const auto empty = folder_.write("empty", "");
  EXPECT_THAT(message_of<CorruptFileError>([&] { TokenDataset({empty}, {.context = 4}); }),
              HasSubstr("got 0 tokens"));
  EXPECT_THROW(TokenDataset({folder_.path() / "absent"}, {}), FileError);
  EXPECT_THROW(TokenDataset({folder_.path()}, {}), FileError);
  EXPECT_THROW(TokenDataset({}, {}), ValueError);
  EXPECT_THROW(TokenDataset({small}, {.context = 0}), ValueError);
  EXPECT_THROW(TokenDataset({small}, {.context = 1, .stride = -1}), ValueError);
  EXPECT_THROW(TokenDataset({small}, {.context = 1}).get(3), ValueError);
}

}  // namespace
}  // namespace bellows::data
