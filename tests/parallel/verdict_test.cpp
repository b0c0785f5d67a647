#include "bellows/parallel/verdict.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

namespace bellows::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kSum = "all_reduce sum float32 [2]";

Complaint complaint(bool timed_out = true) {
  return {.group = "world",
          .members = {0, 1, 2, 3},
          .sequence = 5,
          .what = kSum,
          .timed_out = timed_out,
          .names_all = false,
          .others = {}};
}

Answer in_it(int64_t rank) {
  return {.rank = rank, .group = "world", .begun = 5, .last = kSum, .at = kSum};
}

std::vector<int64_t> ranks_of(const Verdict& verdict) {
  std::vector<int64_t> ranks;
  for (const auto& suspect : verdict.suspects) ranks.push_back(suspect.rank);
  return ranks;
}

TEST(VerdictTest, WhoDoesNotAnswerIsAtFaultAndNotWhoIsLate) {
  const std::vector<Answer> answers = {
      in_it(0), in_it(1), {.rank = 3, .group = "world", .begun = 4}};
  EXPECT_FALSE(complete(complaint(), answers));
  const Verdict verdict = judge(complaint(), answers);
  EXPECT_THAT(ranks_of(verdict), ElementsAre(2));
  EXPECT_EQ(describe(verdict, 0), "rank 2 was not heard from");
}

TEST(VerdictTest, AMonitoredBarrierNamesTheLateToo) {
  Complaint barrier = complaint();
  barrier.names_all = true;
  EXPECT_THAT(ranks_of(judge(barrier, {in_it(0), in_it(1), {.rank = 3, .group = "world"}})),
              ElementsAre(2, 3));
}

TEST(VerdictTest, WhoIsLateIsAtFaultOnceTheTimeIsOver) {
  const std::vector<Answer> answers = {
      in_it(0),
      in_it(1),
      in_it(2),
      {.rank = 3, .group = "world", .begun = 4, .ago_ms = 41'000, .last = "broadcast"}};
  EXPECT_TRUE(complete(complaint(), answers));
  const Verdict verdict = judge(complaint(), answers);
  EXPECT_THAT(ranks_of(verdict), ElementsAre(3));
  EXPECT_EQ(describe(verdict, 0),
            "rank 3 is elsewhere: its last collective was #4 (broadcast), 41 s ago");
  EXPECT_THAT(describe(verdict, 3), HasSubstr("this rank (rank 3) is elsewhere"));
  EXPECT_THAT(judge(complaint(false), answers).suspects, IsEmpty());
}

TEST(VerdictTest, WhoHasLeftIsAtFault) {
  Answer left = in_it(1);
  left.closed = true;
  EXPECT_THAT(ranks_of(judge(complaint(false), {in_it(0), left, in_it(2), in_it(3)})),
              ElementsAre(1));
}

TEST(VerdictTest, WhoHasNotMadeTheGroupYetIsElsewhere) {
  const Verdict verdict = judge(complaint(), {in_it(0), in_it(1), in_it(2), {.rank = 3}});
  EXPECT_THAT(ranks_of(verdict), ElementsAre(3));
  EXPECT_THAT(describe(verdict, 0), HasSubstr("it has begun no collective"));
}

TEST(VerdictTest, TheFewWhoCallSomethingElseAreNamedWithBothCalls) {
  Answer other = in_it(1);
  other.at = "broadcast float32 [3]";
  const Verdict verdict = judge(complaint(false), {in_it(0), other, in_it(2), in_it(3)});
  EXPECT_THAT(ranks_of(verdict), ElementsAre(1));
  EXPECT_THAT(describe(verdict, 0),
              AllOf(HasSubstr("rank 1 called broadcast float32 [3]"), HasSubstr(kSum)));
  Complaint own = complaint(false);
  own.what = other.at;  // told by the one who differs
  EXPECT_THAT(ranks_of(judge(own, {in_it(0), other, in_it(2), in_it(3)})), ElementsAre(1));
}

TEST(VerdictTest, OfAMessageOnlyTheOtherRankCanBeAtFault) {
  Complaint message = complaint();
  message.others = {3};
  EXPECT_THAT(ranks_of(judge(message, {in_it(0), {.rank = 3, .group = "world", .begun = 9}})),
              ElementsAre(3));
}

TEST(VerdictTest, AnswersAndVerdictsSurviveTheStore) {
  Answer answer{.rank = 3,
                .group = "a\tb\nc",
                .begun = 7,
                .closed = true,
                .ago_ms = 12,
                .last = "x",
                .at = "y\tz"};
  const auto back =
      answers_from("garbage\n" + to_line({.rank = 3, .group = "a b c"}) + to_line(answer) + "1\t2");
  ASSERT_EQ(back.size(), 1U);  // the later line counts
  EXPECT_EQ(back[0].group, "a b c");
  EXPECT_EQ(back[0].begun, 7);
  EXPECT_TRUE(back[0].closed);
  EXPECT_EQ(back[0].at, "y z");
  const Verdict verdict =
      judge(complaint(), {in_it(0),
                          in_it(1),
                          in_it(2),
                          {.rank = 3, .group = "world", .begun = 4, .ago_ms = 5, .last = "l"}});
  const Verdict again = verdict_from(to_text(verdict));
  EXPECT_EQ(describe(again, 0), describe(verdict, 0));
  EXPECT_EQ(again.group, "world");
  EXPECT_EQ(again.sequence, 5);
  EXPECT_THROW(verdict_from("nonsense"), std::exception);
}

}  // namespace
}  // namespace bellows::parallel
