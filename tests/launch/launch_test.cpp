// `bellows launch`: what ranks are given, and what their ends become.
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tests/launch/program.h"

namespace bellows::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

TEST(LaunchTest, RanksGetTheEnvironmentThatTorchrunGives) {
  const auto result =
      launch_shell({"--nproc-per-node", "2", "--rdzv-id", "job7", "--max-restarts", "3"},
                   "echo $RANK $LOCAL_RANK $GROUP_RANK $ROLE_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE "
                   "$ROLE_WORLD_SIZE $GROUP_WORLD_SIZE $ROLE_NAME $MASTER_ADDR "
                   "$TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID "
                   "$TORCHELASTIC_USE_AGENT_STORE");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(lines_of(result.out),
              UnorderedElementsAre("[rank 0] 0 0 0 0 2 2 2 1 default 127.0.0.1 0 3 job7 False",
                                   "[rank 1] 1 1 0 1 2 2 2 1 default 127.0.0.1 0 3 job7 False"));
}

TEST(LaunchTest, TheFirstFailingRankIsNamedAndItsCodeIsTheLaunchers) {
  const auto result = launch_shell({"--nproc-per-node", "4"},
                                   "if [ $RANK = 2 ]; then echo bad data row 12 >&2; exit 7; fi; "
                                   "sleep 100");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.err, HasSubstr("rank 2 failed first: exit code 7"));
  EXPECT_THAT(result.err, HasSubstr("bad data row 12"));
  EXPECT_THAT(result.err, HasSubstr("rank 0: stopped by the launcher (SIGTERM)"));
  EXPECT_THAT(result.err, Not(HasSubstr("rank 2: stopped")));
}

}  // namespace
}  // namespace bellows::testing
