// `bellows launch`: what ranks are given, and what their ends become.
#include <gmock/gmock.h>
#include <map>
#include <set>
#include <thread>

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

/// What a rank may run on.
const std::string kAffinity = "echo cpus $(grep Cpus_allowed_list /proc/self/status)";

TEST(LaunchTest, RanksBoundToCoresSeeThatAndShareNone) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "needs two cores";
  const auto result = launch_shell({"--bind-to", "core", "--nproc", "2"}, kAffinity);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::set<std::string> sets;
  for (const auto& line : lines_of(result.out)) {
    const std::string cpus = line.substr(line.rfind(' ') + 1);
    sets.insert(cpus);
    const std::string rank = line.substr(6, 1);
    EXPECT_THAT(result.err, HasSubstr("local rank " + rank + " is bound to CPUs " + cpus + "\n"));
  }
  EXPECT_EQ(sets.size(), 2U) << result.out;
  // Without the flag nothing changes.
  const auto free = launch_shell({"--nproc", "2"}, kAffinity);
  const auto own = run({"sh", "-c", kAffinity});
  EXPECT_THAT(lines_of(free.out), UnorderedElementsAre("[rank 0] " + lines_of(own.out).at(0),
                                                       "[rank 1] " + lines_of(own.out).at(0)));
}

TEST(LaunchTest, RanksWithoutDevicesAreSpreadOverTheNumaNodes) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "needs two cores";
  const std::map<std::string, std::string> two_nodes{
      {"HWLOC_SYNTHETIC", "package:1 numa:2 core:1 pu:1"}, {"CUDA_VISIBLE_DEVICES", ""}};
  const auto result =
      launch_shell({"--numa-binding", "node", "--nproc", "2"}, kAffinity, two_nodes);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank 0] cpus Cpus_allowed_list: 0\n"),
                                HasSubstr("[rank 1] cpus Cpus_allowed_list: 1\n")));
  const auto more =
      launch_shell({"--numa-binding", "exclusive", "--nproc", "3"}, kAffinity, two_nodes);
  EXPECT_EQ(more.exit_code, 3);
  EXPECT_THAT(more.err, HasSubstr("start fewer ranks"));
}

}  // namespace
}  // namespace bellows::testing
