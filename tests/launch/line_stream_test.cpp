#include "bellows/launch/line_stream.h"

#include <gtest/gtest.h>

namespace bellows::launch {
namespace {

std::string fed(LineStream& lines, std::string_view bytes) {
  std::string out;
  lines.feed(bytes, out);
  return out;
}

TEST(LineStreamTest, LinesAreWholeHoweverTheBytesArrive) {
  const std::string text = "one\n\ntwo \r\nthree\rfour\n";
  for (size_t size = 1; size <= text.size(); ++size) {
    LineStream lines("[rank 1] ");
    std::string out;
    for (size_t at = 0; at < text.size(); at += size) lines.feed(text.substr(at, size), out);
    EXPECT_EQ(out, "[rank 1] one\n[rank 1] \n[rank 1] two \r\n[rank 1] three\rfour\n") << size;
  }
}

TEST(LineStreamTest, TheLastLineIsKeptUntilItEnds) {
  LineStream lines("> ");
  EXPECT_EQ(fed(lines, "one\ntw"), "> one\n");
  std::string out;
  lines.finish(out);
  EXPECT_EQ(out, "> tw\n");
  lines.finish(out);
  EXPECT_EQ(out, "> tw\n");
}

TEST(LineStreamTest, BytesAreLeftAsTheyAre) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) {
    if (i != '\n') bytes += static_cast<char>(i);
  }
  LineStream lines("");
  EXPECT_EQ(fed(lines, bytes + "\n"), bytes + "\n");
}

TEST(LineStreamTest, AProgressBarIsShownUpToItsLastReturn) {
  LineStream lines("> ");
  EXPECT_EQ(fed(lines, "10%\r20%\r3"), "");
  ASSERT_TRUE(lines.has_progress());
  std::string out;
  lines.show_progress(out);
  EXPECT_EQ(out, "> 10%\r20%\r");
  EXPECT_FALSE(lines.has_progress());
  EXPECT_EQ(fed(lines, "0%\n"), "> 30%\n");
}

TEST(LineStreamTest, AnEndlessLineDoesNotFillTheMemory) {
  LineStream lines("");
  const std::string megabyte(1 << 20, 'x');
  size_t written = 0;
  for (int i = 0; i < 40; ++i) written += fed(lines, megabyte).size();
  EXPECT_GT(written, size_t{20} << 20);
}

TEST(TailTest, HasTheLastLines) {
  Tail tail;
  EXPECT_TRUE(tail.empty());
  for (int i = 0; i < 10'000; ++i) tail.feed("line " + std::to_string(i) + "\n");
  EXPECT_EQ(tail.lines(2, "| "), "| line 9998\n| line 9999\n");
  tail.feed(std::string(100'000, 'x'));
  EXPECT_LT(tail.lines(20, "").size(), 1000U);
  Tail one;
  one.feed("only\a one");
  EXPECT_EQ(one.lines(20, "| "), "| only  one\n");
}

}  // namespace
}  // namespace bellows::launch
