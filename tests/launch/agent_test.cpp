// The agent channel: messages, and what the launcher makes of those that are none.
#include <array>
#include <gmock/gmock.h>
#include <random>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "bellows/core/agent_protocol.h"
#include "bellows/launch/agent_peer.h"

namespace bellows {
namespace {

using agent::Kind;
using agent::Message;
using launch::AgentPeer;
using launch::Descriptor;
using ::testing::HasSubstr;
using ::testing::Not;

std::string packet(const Message& message) {
  std::array<char, agent::kLongestPacket> buffer{};
  return {buffer.data(), agent::encode(message, buffer)};
}

TEST(AgentProtocolTest, AMessageIsReadAsItWasWritten) {
  Message message;
  message.kind = Kind::collective;
  message.name = "all_reduce";
  message.sequence = 1234567890123;
  message.bucket = 0;
  message.text = "two\nlines = text";
  const std::string bytes = packet(message);
  EXPECT_EQ(bytes, "collective sequence=1234567890123 bucket=0 name=all_reduce\ntwo\nlines = text");
  const auto read = agent::decode(bytes);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->kind, Kind::collective);
  EXPECT_EQ(read->name, "all_reduce");
  EXPECT_EQ(read->sequence, 1234567890123);
  EXPECT_EQ(read->bucket, 0);
  EXPECT_EQ(read->step, -1);
  EXPECT_EQ(read->text, message.text);
}

TEST(AgentProtocolTest, NamesCannotBreakAPacketAndTextIsCutAtItsEnd) {
  Message message;
  message.kind = Kind::phase;
  const std::string name = "a b=c\nd" + std::string(100, 'e');
  message.name = name;
  EXPECT_EQ(packet(message), "phase name=a_b_c_d" + std::string(57, 'e'));
  const std::string text(20'000, 'x');
  message.kind = Kind::exception;
  message.name = {};
  message.text = text;
  EXPECT_EQ(packet(message).size(), agent::kLongestPacket);
}

TEST(AgentProtocolTest, WhatIsNoMessageIsNothing) {
  for (const char* bytes :
       {"", " ", "\n", "hallo", "phase step", "phase step=", "phase step=x", "phase step=-1",
        "phase step=1x", "phase  step=1", "phase step=99999999999999999999", "phase name=a\tb",
        "phase "
        "name=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "phase "}) {
    EXPECT_FALSE(agent::decode(bytes)) << "'" << bytes << "'";
  }
  EXPECT_TRUE(agent::decode("phase step=1 later=whatever name=forward"));
}

class AgentPeerTest : public ::testing::Test {
 protected:
  AgentPeerTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    peer_ = AgentPeer(Descriptor(ends[0]), 2, "5ec4e7");
    rank_ = Descriptor(ends[1]);
  }
  void send(const std::string& bytes) const {
    EXPECT_EQ(::send(rank_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT),
              static_cast<ssize_t>(bytes.size()));
  }
  std::string after(const std::string& bytes) {
    send(bytes);
    peer_.drain();
    return peer_.describe();
  }
  void hello() { after("hello version=1 rank=2 pid=5 secret=5ec4e7"); }

  AgentPeer peer_;
  Descriptor rank_;
};

TEST_F(AgentPeerTest, SaysPhaseAndCollectiveUntilItIsDone) {
  EXPECT_EQ(peer_.describe(), "has not said what it is doing");
  hello();
  EXPECT_EQ(peer_.describe(), "has not named a phase yet");
  EXPECT_THAT(after("phase name=forward step=12"), HasSubstr("forward of step 12 for 0.0 s"));
  EXPECT_THAT(after("collective name=all_reduce sequence=57 bucket=3"),
              HasSubstr("in all_reduce number 57 of bucket 3"));
  EXPECT_THAT(after("done sequence=57"), Not(HasSubstr("all_reduce")));
  EXPECT_EQ(after("bye"), "leaving");
}

TEST_F(AgentPeerTest, NothingCountsWithoutTheRightSecretRankAndVersion) {
  for (const char* wrong :
       {"hello version=1 rank=2 secret=wrong", "hello version=1 rank=3 secret=5ec4e7",
        "hello version=1 rank=2", "hello"}) {
    send(wrong);
    send("exception\nforged");
    peer_.drain();
    EXPECT_EQ(peer_.exception(), "") << wrong;
  }
  EXPECT_THAT(peer_.describe(), HasSubstr("8 messages refused"));
  EXPECT_THAT(after("hello version=9 rank=2 secret=5ec4e7"),
              HasSubstr("speaks version 9 of the agent channel, this launcher 1"));
  after("exception\nforged");
  EXPECT_EQ(peer_.exception(), "");
}

TEST_F(AgentPeerTest, LongOrEmptyPacketsAreRefusedAndLaterOnesStillRead) {
  hello();
  EXPECT_THAT(after(std::string(50'000, 'x')), HasSubstr("1 messages refused"));
  EXPECT_THAT(after(""), HasSubstr("2 messages refused"));
  EXPECT_THAT(after("phase name=forward step=1"), HasSubstr("forward of step 1"));
}

TEST_F(AgentPeerTest, AHundredThousandRandomPacketsDoNoHarm) {
  hello();
  std::mt19937 random(7);
  const std::string seedling = "collective sequence=57 bucket=3 name=all_reduce lost=2\ntext";
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes = seedling;
    for (unsigned change = random() % 8; change > 0; --change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
      if (random() % 4 == 0) bytes.erase(random() % bytes.size(), random() % 5);
      if (bytes.empty()) bytes = " ";
    }
    peer_.take(bytes);
  }
  EXPECT_LT(peer_.describe().size(), 500U);
  EXPECT_THAT(after("phase name=forward step=1"), HasSubstr("forward of step 1"));
}

TEST_F(AgentPeerTest, ARankThatNeverReadsDoesNotHoldTheLauncherUp) {
  hello();
  for (int i = 0; i < 10'000; ++i) peer_.ask_to_stop(std::chrono::seconds(30));
}

TEST_F(AgentPeerTest, TheEndOfTheRankClosesTheChannel) {
  rank_.close();
  peer_.drain();
  EXPECT_EQ(peer_.fd(), -1);
}

}  // namespace
}  // namespace bellows
