// What travels between nodes, and what is made of anything else.
#include "bellows/nodes/protocol.h"

#include <gmock/gmock.h>
#include <random>

#include <gtest/gtest.h>

namespace bellows::nodes {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Plan full_plan() {
  Plan plan;
  plan.number = 9;
  plan.stage = Plan::Stage::stopping;
  plan.generation = 2;
  plan.restarts = 1;
  plan.members = {{"00112233445566aa", "hosta", 12, 4}, {"00112233445566bb", "hostb", 13, 1}};
  plan.master_address = "fd00::1";
  plan.master_port = 4711;
  plan.signal = 15;
  plan.asks = 2;
  plan.code = 75;
  plan.text = "why";
  plan.node = "00112233445566bb";
  plan.report = "line\n\tline\n";
  plan.refused = {{"00112233445566cc", "no"}};
  plan.lost = {"00112233445566dd"};
  return plan;
}

TEST(NodeProtocolTest, APlanArrivesAsItWas) {
  EXPECT_EQ(decode_plan(encode(full_plan())), full_plan());
}

TEST(NodeProtocolTest, AStateArrivesAsItWas) {
  NodeState state;
  state.id = "00112233445566aa";
  state.stage = NodeState::Stage::ended;
  state.generation = 3;
  state.rank = 5;
  state.killed = state.failed = true;
  state.fixed = false;
  state.how = "SIGKILL (…)";
  state.report = std::string(100'000, 'x');
  const auto got = decode_state(encode(state));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->id, state.id);
  EXPECT_EQ(got->stage, state.stage);
  EXPECT_EQ(got->rank, 5);
  EXPECT_TRUE(got->killed && got->failed && !got->fixed);
  EXPECT_EQ(got->how, state.how);
  EXPECT_EQ(got->report.size(), kLongestReport);
}

TEST(NodeProtocolTest, WhatATerminalWouldActOnDoesNotArrive) {
  Plan plan = full_plan();
  plan.text = "\x1b[2Jgone";
  plan.report = "bytes \xff\xfe\r\n";
  const auto got = decode_plan(encode(plan));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->text, " [2Jgone");
  EXPECT_THAT(got->report, Not(HasSubstr("\r")));
}

TEST(NodeProtocolTest, WhatIsNoMessageIsNothing) {
  const std::string whole = encode(full_plan());
  EXPECT_FALSE(decode_plan(""));
  EXPECT_FALSE(decode_plan("[]"));
  EXPECT_FALSE(decode_plan("{}"));
  EXPECT_FALSE(decode_state(whole));
  EXPECT_FALSE(decode_plan(std::string(100'000, '[')));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    text.replace(text.find(from), from.size(), to);
    return decode_plan(text);
  };
  EXPECT_TRUE(with("\"stage\":2", "\"stage\":3"));
  EXPECT_FALSE(with("\"stage\":2", "\"stage\":4"));
  EXPECT_FALSE(with("\"stage\":2", "\"stage\":\"2\""));
  EXPECT_FALSE(with("\"master_port\":4711", "\"master_port\":471100"));
  EXPECT_FALSE(with("\"ranks\":4", "\"ranks\":0"));
  EXPECT_FALSE(with("\"code\":75", "\"code\":-1"));
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(decode_plan(whole.substr(0, length)));
  }
  std::mt19937 random(3);
  for (int round = 0; round < 20'000; ++round) {  // must not throw
    std::string text = whole;
    for (int i = 0; i < 3; ++i) text[random() % text.size()] = static_cast<char>(random());
    decode_plan(text);
    decode_state(text);
    decode_job(text);
  }
}

}  // namespace
}  // namespace bellows::nodes
