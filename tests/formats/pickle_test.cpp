// The pickle machine: every opcode alone, and what files that run code become. Exchange with
// Python itself is in tests/python/torch_exchange.py.
#include "bellows/formats/pickle.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tests/formats/files.h"

namespace bellows::formats::test {
namespace {

using pickle::Tag;
using pickle::Value;
using ::testing::HasSubstr;

constexpr uint64_t kLimit = 16 << 20;

struct Loaded {
  pickle::Heap heap{"file", kLimit};
  Value value;
};

Loaded load(const std::string& bytes) {
  Loaded loaded;
  const InputMemory file(std::as_bytes(std::span(bytes)), "file");
  pickle::Cursor in(file, 0, file.size());
  loaded.value = pickle::load(in, loaded.heap);
  return loaded;
}

std::string fault_of(const std::string& bytes) {
  return error_of(bytes, [&](const InputBytes&) { load(bytes); });
}

TEST(Pickle, EveryByteAloneAndAfterSomethingOnTheStackIsReadOrRefused) {
  for (int op = 0; op < 256; ++op) {
    for (const std::string& before : {std::string(), std::string("("), std::string("K\1"),
                                      std::string("(K\1K\2"), std::string("})(")}) {
      for (const std::string& after :
           {std::string("."), std::string(9, '\0') + ".", std::string(9, '\xff') + "\n\n."}) {
        static_cast<void>(fault_of(before + static_cast<char>(op) + after));
      }
    }
  }
}

TEST(Pickle, WhatAFileWantsToCallIsOnlyAName) {
  for (const std::string& call : {std::string("cos\nsystem\n(X\2\0\0\0lstR.", 23),
                                  std::string("(X\2\0\0\0lsios\nsystem\n.", 20),
                                  std::string("(cos\nsystem\nX\2\0\0\0lso.", 22),
                                  std::string("\x8c\2os\x8c\6system\x93(X\2\0\0\0lstR.", 24)}) {
    const Loaded loaded = load(call);
    ASSERT_EQ(loaded.value.tag, Tag::object) << call;
    EXPECT_EQ(loaded.heap.object(loaded.value).name, "os.system");
  }
}

TEST(Pickle, NumbersOfEveryProtocolAreExact) {
  const auto integer = [](const std::string& bytes) { return load(bytes).value.integer; };
  EXPECT_EQ(integer("I-12\n."), -12);
  EXPECT_EQ(integer("L9223372036854775807L\n."), INT64_MAX);
  EXPECT_EQ(integer("J\xff\xff\xff\xff."), -1);
  EXPECT_EQ(integer(std::string("\x8a\0.", 3)), 0);
  EXPECT_EQ(integer("\x8a\1\x80."), -128);
  EXPECT_EQ(integer(std::string("\x8a\x08\0\0\0\0\0\0\0\x80.", 11)), INT64_MIN);
  EXPECT_EQ(load("F0.1\n.").value.real, 0.1);
  EXPECT_EQ(load("I01\n.").value.tag, Tag::boolean);
  EXPECT_EQ(load("\x8a\x09"
                 "123456789.")
                .value.tag,
            Tag::big_integer);
}

TEST(Pickle, MemoryIsRefusedBeforeItIsTaken) {
  EXPECT_THAT(fault_of(std::string(20 << 20, 'N')), HasSubstr("its objects need more than"));
  EXPECT_THAT(fault_of(std::string(20 << 20, '(')), HasSubstr("its objects need more than"));
  EXPECT_THAT(fault_of("\x8d" + std::string(8, '\x7f') + "."), HasSubstr("does not fit"));
}

TEST(Pickle, NewerProtocolsAreRefusedByNumber) {
  EXPECT_THAT(fault_of("\x80\x06N."), HasSubstr("its protocol is 6, this reads up to 5"));
}

}  // namespace
}  // namespace bellows::formats::test
