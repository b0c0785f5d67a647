#include "bellows/core/printable.h"

#include <gtest/gtest.h>

namespace bellows {
namespace {

TEST(PrintableTest, WhatTerminalsWouldActOnIsEscaped) {
  EXPECT_EQ(printable("fc.weight \"ü\" 層 🙂 \\n"), "fc.weight \"ü\" 層 🙂 \\n");
  EXPECT_EQ(printable("\x1b[31m\n\r\t\x7f"), "\\x1b[31m\\n\\r\\t\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\u009b2J"), "\\u009b2J");
  EXPECT_EQ(printable("\u202etxt.\u2066"), "\\u202etxt.\\u2066");
  EXPECT_EQ(printable("\xff\xc0\xaf\xed\xa0\x80z\xe5\xb1"),
            "\\xff\\xc0\\xaf\\xed\\xa0\\x80z\\xe5\\xb1");
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable(""), "");
}

}  // namespace
}  // namespace bellows
