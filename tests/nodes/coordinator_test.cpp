// What is decided for all nodes, with time moved by hand.
#include "bellows/nodes/coordinator.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

namespace bellows::nodes {
namespace {

using namespace std::chrono_literals;
using Stage = NodeState::Stage;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HandClock : public Clock {
 public:
  Duration now() const override { return time; }
  Duration time = 1000s;
};

class CoordinatorTest : public ::testing::Test {
 protected:
  void rules(int least, int most, bool fixed = false, int restarts = 0) {
    Rules rules;
    rules.least = least;
    rules.most = most;
    rules.fixed = fixed;
    rules.max_restarts = restarts;
    rules.join = 600s;
    rules.last_call = 30s;
    rules.lost_after = 15s;
    rules.stop_within = 60s;
    rules_ = rules;
    coordinator_.emplace(rules);
  }
  NodeState& come(const std::string& id, int ranks = 2, int node_rank = 0) {
    NodeState state;
    state.id = id;
    state.host = "host-" + id;
    state.pid = 7;
    state.address = "10.0.0." + id;
    state.port = 4000 + static_cast<int>(states_.size());
    state.ranks = ranks;
    state.node_rank = node_rank;
    state.least = rules_.least;
    state.most = rules_.most;
    state.fixed = rules_.fixed;
    state.max_restarts = rules_.max_restarts;
    states_.push_back(state);
    return states_.back();
  }
  NodeState& node(const std::string& id) {
    return *std::find_if(states_.begin(), states_.end(),
                         [&](const NodeState& state) { return state.id == id; });
  }
  /// All that live write; those that are silent do not.
  const Plan& step(Clock::Duration later = 100ms, const std::set<std::string>& silent = {}) {
    // In small steps: the coordinator runs all the time.
    for (const auto end = clock_.time + later; clock_.time < end;) {
      clock_.time += std::min<Clock::Duration>(500ms, end - clock_.time);
      for (auto& state : states_) state.beat += !silent.contains(state.id);
      coordinator_->step(states_);
    }
    return plan();
  }
  const Plan& plan() const { return coordinator_->plan(); }
  /// As nodes do that read the plan.
  void obey() {
    for (auto& state : states_) {
      const bool member = std::any_of(plan().members.begin(), plan().members.end(),
                                      [&](const Member& one) { return one.id == state.id; });
      if (state.stage == Stage::left) continue;
      if (plan().stage == Plan::Stage::running && member && state.stage == Stage::waiting) {
        state.stage = Stage::running;
        state.generation = plan().generation;
        state.failed = false;
      }
      if (plan().stage == Plan::Stage::stopping && member) state.stage = Stage::ended;
      if (plan().stage == Plan::Stage::gathering && state.stage == Stage::ended) {
        state.stage = Stage::waiting;
      }
    }
  }
  void fail(const std::string& id, int rank, bool killed, int code, size_t arrival) {
    NodeState& state = node(id);
    state.failed = true;
    state.rank = rank;
    state.killed = killed;
    state.code = code;
    state.arrival = arrival;
    state.how = killed ? "SIGKILL" : "exit code " + std::to_string(code);
    state.report = "report of " + id;
  }
  void start() {
    step();
    ASSERT_EQ(plan().stage, Plan::Stage::running);
    obey();
    step();
  }
  std::vector<std::string> members() const {
    std::vector<std::string> ids;
    for (const auto& member : plan().members) ids.push_back(member.id);
    return ids;
  }

  HandClock clock_;
  ScopedClock scope_{clock_};
  Rules rules_;
  std::vector<NodeState> states_;
  std::optional<Coordinator> coordinator_;
};

TEST_F(CoordinatorTest, NodesAreNumberedAsTheyComeAndTheFirstHasRankZerosStore) {
  rules(2, 2);
  come("b", 3);
  EXPECT_EQ(step().stage, Plan::Stage::gathering);
  EXPECT_THAT(plan().text, HasSubstr("1 of 2 nodes is here: host-b, pid 7"));
  come("a", 1);
  EXPECT_EQ(step().stage, Plan::Stage::running);
  EXPECT_THAT(members(), ElementsAre("b", "a"));
  EXPECT_EQ(plan().members[0].ranks, 3);
  EXPECT_EQ(plan().master_address, "10.0.0.b");
  EXPECT_EQ(plan().master_port, 4000);
  EXPECT_EQ(plan().generation, 0);
}

TEST_F(CoordinatorTest, WithNodeRanksThoseCountAndAllAreNeeded) {
  rules(2, 3, true);
  come("a", 1, 2);
  come("b", 1, 0);
  EXPECT_EQ(step(100s).stage, Plan::Stage::gathering);
  EXPECT_THAT(plan().text, HasSubstr("not here: node rank 1"));
  come("c", 1, 1);
  EXPECT_EQ(step().stage, Plan::Stage::running);
  EXPECT_THAT(members(), ElementsAre("b", "c", "a"));
}

TEST_F(CoordinatorTest, ANodeRankThatComesTwiceIsRefusedAndSaysWhoHasIt) {
  rules(2, 2, true);
  come("a", 1, 0);
  come("b", 1, 0);
  step();
  EXPECT_FALSE(plan().refused.contains("a"));
  EXPECT_THAT(plan().refused.at("b"), HasSubstr("--node-rank 0 is taken by the node on host-a"));
  node("b").stage = Stage::left;
  node("b").code = 2;
  come("c", 1, 1);
  EXPECT_EQ(step().stage, Plan::Stage::running);
}

TEST_F(CoordinatorTest, OtherFlagsAreRefused) {
  rules(2, 2);
  come("a");
  come("b").most = 3;
  step();
  EXPECT_THAT(plan().refused.at("b"), HasSubstr("same flags"));
}

TEST_F(CoordinatorTest, TheLastCallBeginsOnceEnoughAreThere) {
  rules(1, 3);
  come("a");
  EXPECT_EQ(step(29s).stage, Plan::Stage::gathering);
  EXPECT_EQ(step(2s).stage, Plan::Stage::running);
  EXPECT_EQ(plan().members.size(), 1U);
}

TEST_F(CoordinatorTest, WhoeverComesInTheLastCallIsTaken) {
  rules(2, 4);
  come("a");
  step(100s);
  come("b");
  step(20s);
  come("c");
  EXPECT_EQ(step(9s).stage, Plan::Stage::gathering);
  EXPECT_EQ(step(2s).stage, Plan::Stage::running);
  EXPECT_EQ(plan().members.size(), 3U);
}

TEST_F(CoordinatorTest, ATimeOutSaysWhoIsHere) {
  rules(3, 3, true);
  come("a", 1, 0);
  come("b", 1, 2);
  EXPECT_EQ(step(599s).stage, Plan::Stage::gathering);
  EXPECT_EQ(step(2s).stage, Plan::Stage::ended);
  EXPECT_EQ(plan().code, 3);
  EXPECT_THAT(plan().text, HasSubstr("within 600 s not all nodes came: 2 of 3 nodes are here: "
                                     "host-a, pid 7; host-b, pid 7; not here: node rank 1"));
}

TEST_F(CoordinatorTest, AllDoneEndsWithZeroOnceTheLastIsDone) {
  rules(2, 2);
  come("a");
  come("b");
  start();
  node("a").stage = Stage::ended;
  EXPECT_EQ(step(1000s).stage, Plan::Stage::running);
  node("b").stage = Stage::ended;
  EXPECT_EQ(step().stage, Plan::Stage::ended);
  EXPECT_EQ(plan().code, 0);
  EXPECT_FALSE(coordinator_->all_left());
  node("a").stage = node("b").stage = Stage::left;
  step();
  EXPECT_TRUE(coordinator_->all_left());
}

TEST_F(CoordinatorTest, AFailureStopsAllAndNamesRankAndNode) {
  rules(2, 2);
  come("a");
  come("b");
  start();
  fail("b", 2, false, 7, 0);
  EXPECT_EQ(step().stage, Plan::Stage::stopping);
  EXPECT_EQ(step(10s).stage, Plan::Stage::stopping);  // until all have ended
  obey();
  EXPECT_EQ(step().stage, Plan::Stage::ended);
  EXPECT_EQ(plan().code, 7);
  EXPECT_EQ(plan().text, "node 1 (host-b, pid 7): rank 2 failed first: exit code 7");
  EXPECT_EQ(plan().report, "report of b");
  EXPECT_EQ(plan().node, "b");
}

TEST_F(CoordinatorTest, OfSeveralFailuresTheKilledAndThenTheFirstIsTold) {
  rules(3, 3);
  for (const char* id : {"a", "b", "c"}) come(id);
  start();
  fail("a", 0, false, 1, 1);  // noticed
  fail("b", 2, false, 7, 0);
  step();
  obey();
  EXPECT_THAT(step().text, HasSubstr("rank 2 failed first"));
  rules(3, 3);
  for (auto& state : states_) state.stage = Stage::waiting, state.failed = false;
  start();
  fail("a", 0, false, 1, 0);
  fail("c", 4, true, 137, 1);
  step();
  obey();
  EXPECT_THAT(step().text, HasSubstr("rank 4 failed first: SIGKILL"));
  EXPECT_EQ(plan().code, 137);
}

TEST_F(CoordinatorTest, AFailureStartsAllAnewAsOftenAsAllowed) {
  rules(2, 2, false, 1);
  come("a");
  come("b");
  start();
  fail("b", 2, false, 7, 0);
  step();
  obey();
  EXPECT_EQ(step().stage, Plan::Stage::gathering);
  EXPECT_THAT(plan().text, HasSubstr("all ranks are started anew (restart 1 of 1)"));
  obey();
  EXPECT_EQ(step().stage, Plan::Stage::running);
  EXPECT_EQ(plan().generation, 1);
  EXPECT_EQ(plan().restarts, 1);
  obey();
  fail("a", 0, false, 9, 0);
  step();
  obey();
  EXPECT_EQ(step().stage, Plan::Stage::ended);
  EXPECT_EQ(plan().code, 9);
}

TEST_F(CoordinatorTest, ALostNodeIsLeftBehindWhereEnoughRemain) {
  rules(2, 3, false, 3);
  for (const char* id : {"a", "b", "c"}) come(id);
  start();
  EXPECT_EQ(step(14s, {"b"}).stage, Plan::Stage::running);
  EXPECT_EQ(step(2s, {"b"}).stage, Plan::Stage::stopping);
  obey();
  EXPECT_EQ(step(100ms, {"b"}).stage, Plan::Stage::gathering);
  EXPECT_THAT(plan().text, HasSubstr("node 1 (host-b, pid 7) was lost: nothing was heard from it "
                                     "for 15 s; all ranks are started anew (restart 1 of 3)"));
  obey();
  EXPECT_EQ(step(100ms, {"b"}).stage, Plan::Stage::running);
  EXPECT_THAT(members(), ElementsAre("a", "c"));
  step(1s);  // it is heard again, and stays out
  EXPECT_THAT(plan().lost, ElementsAre("b"));
  EXPECT_EQ(plan().stage, Plan::Stage::running);
}

TEST_F(CoordinatorTest, ALostNodeThatIsNeededEndsTheJobWithItsName) {
  rules(2, 2, false, 3);
  come("a");
  come("b");
  start();
  fail("a", 0, false, 1, 0);  // its ranks notice first
  step(100ms, {"b"});
  node("a").stage = Stage::ended;
  EXPECT_EQ(step(14s, {"b"}).stage, Plan::Stage::stopping);
  EXPECT_EQ(step(2s, {"b"}).stage, Plan::Stage::ended);
  EXPECT_EQ(plan().code, 3);
  EXPECT_THAT(plan().text, HasSubstr("node 1 (host-b, pid 7) was lost"));
  EXPECT_THAT(plan().text, HasSubstr("1 node left, --nnodes asks for at least 2"));
}

TEST_F(CoordinatorTest, ANodeThatComesLaterMakesANewGenerationAndIsNoFailure) {
  rules(1, 2, false, 0);
  come("a");
  step(31s);
  obey();
  step();
  come("b");
  EXPECT_EQ(step().stage, Plan::Stage::stopping);
  node("a").code = 75;  // it saved when it was stopped
  obey();
  EXPECT_EQ(step().stage, Plan::Stage::gathering);
  EXPECT_THAT(plan().text, HasSubstr("a node comes in: host-b"));
  obey();
  EXPECT_EQ(step().stage, Plan::Stage::running);
  EXPECT_THAT(members(), ElementsAre("a", "b"));
  EXPECT_EQ(plan().generation, 1);
  EXPECT_EQ(plan().restarts, 0);
}

TEST_F(CoordinatorTest, ANodeTooManyWaitsAndTakesThePlaceOfALostOne) {
  rules(2, 2, false, 1);
  come("a");
  come("b");
  start();
  come("c");
  EXPECT_EQ(step(10s).stage, Plan::Stage::running);
  step(16s, {"b"});
  obey();
  step(100ms, {"b"});
  obey();
  EXPECT_EQ(step(100ms, {"b"}).stage, Plan::Stage::running);
  EXPECT_THAT(members(), ElementsAre("a", "c"));
}

TEST_F(CoordinatorTest, TheNodeWithTheStoreIsInEvenIfItComesLast) {
  rules(2, 2);
  rules_.keeper = "c";
  coordinator_.emplace(rules_);
  come("a");
  come("b");
  EXPECT_EQ(step(1s).stage, Plan::Stage::gathering);
  come("c");
  EXPECT_EQ(step().stage, Plan::Stage::running);
  EXPECT_THAT(members(), ElementsAre("c", "a"));
}

TEST_F(CoordinatorTest, ARequestToEndReachesAllAndEndsWithTheirOutcome) {
  rules(2, 2, false, 3);
  come("a");
  come("b");
  start();
  node("b").signal = 15;
  node("b").asks = 1;
  EXPECT_EQ(step().asks, 1);
  EXPECT_EQ(plan().signal, 15);
  EXPECT_EQ(plan().stage, Plan::Stage::running);
  node("a").stage = node("b").stage = Stage::ended;
  node("a").code = 75;
  EXPECT_EQ(step().stage, Plan::Stage::ended);
  EXPECT_EQ(plan().code, 75);
}

TEST_F(CoordinatorTest, AskedWhileRanksAreStoppedForANewNodeItEndsWithTheSignal) {
  rules(1, 2);
  come("a");
  step(31s);
  obey();
  come("b");
  ASSERT_EQ(step().stage, Plan::Stage::stopping);
  node("a").signal = 15;
  node("a").asks = 1;
  node("a").stage = Stage::ended;
  node("a").code = 128;  // a launcher that was not asked itself
  EXPECT_EQ(step().stage, Plan::Stage::ended);
  EXPECT_EQ(plan().code, 143);
}

TEST_F(CoordinatorTest, AskedBeforeAllAreThereItEnds) {
  rules(2, 2);
  come("a");
  step();
  node("a").signal = 15;
  node("a").asks = 1;
  EXPECT_EQ(step().stage, Plan::Stage::ended);
  EXPECT_EQ(plan().code, 143);
}

TEST_F(CoordinatorTest, ANodeThatGivesUpEndsTheJobWithoutARestart) {
  rules(2, 2, false, 3);
  come("a");
  come("b");
  start();
  node("b").stage = Stage::left;
  node("b").code = 2;
  node("b").report = "no program 'x'";
  step();
  obey();
  EXPECT_EQ(step().stage, Plan::Stage::ended);
  EXPECT_EQ(plan().code, 2);
  EXPECT_EQ(plan().report, "no program 'x'");
}

TEST_F(CoordinatorTest, ItsOwnPauseIsNotHeldAgainstTheOthers) {
  rules(2, 2, false, 3);
  come("a");
  come("b");
  start();
  clock_.time += 1h;  // stopped meanwhile, with the store
  coordinator_->step(states_);
  EXPECT_EQ(plan().stage, Plan::Stage::running);
  step(10s, {"b"});
  EXPECT_EQ(plan().stage, Plan::Stage::running);
  step(6s, {"b"});
  EXPECT_EQ(plan().stage, Plan::Stage::stopping);
}

}  // namespace
}  // namespace bellows::nodes
