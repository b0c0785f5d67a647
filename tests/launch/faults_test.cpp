// Kills, signals and shortages: whatever happens to launcher or ranks, nothing is left behind and
// the exit code says what it was. BELLOWS_FAULT_REPEAT=20 repeats what is drawn.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <list>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/launch/program.h"
#include "tests/support/mark.h"

namespace bellows::testing {
namespace {
namespace fs = std::filesystem;
using namespace std::chrono_literals;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

int repeats() {
  const char* text = std::getenv("BELLOWS_FAULT_REPEAT");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

void wait_for_lines(Process& process, size_t lines) {
  while (process.running() && lines_of(process.out_so_far()).size() < lines) {
    std::this_thread::sleep_for(2ms);
  }
}

const std::string kSleeper = "sleep 100 & wait";

TEST(LaunchFaultsTest, ALauncherKilledAtAnyMomentLeavesNothing) {
  std::mt19937 random(5);
  for (int round = 0; round < 100 * repeats(); ++round) {
    const Mark mark;
    std::list<Process> launchers;
    for (int i = 0; i < 5; ++i) {
      launchers.emplace_back(shell_job({"--nproc", "2"}, kSleeper), mark.environment());
      const int most = i == 4 ? 50'000 : 5'000;  // microseconds
      std::this_thread::sleep_for(
          std::chrono::microseconds(random() % static_cast<unsigned>(most)));
      launchers.back().signal(SIGKILL);
    }
    ASSERT_TRUE(mark.gone_within(2s)) << "round " << round;
  }
}

TEST(LaunchFaultsTest, AKilledLauncherFreesItsPortForTheNext) {
  const Mark mark;
  std::string port = lines_of(launch_shell({}, "echo $MASTER_PORT").out).at(0);
  port.erase(0, std::string("[rank 0] ").size());
  const auto flags = std::vector<std::string>{"--nproc", "2", "--master-port", port};
  Process first(shell_job(flags, kSleeper), mark.environment());
  mark.wait_for(5);
  first.signal(SIGKILL);
  EXPECT_EQ(launch_shell(flags, "exit 0").exit_code, 0);
  EXPECT_TRUE(mark.gone_within(2s));
}

TEST(LaunchFaultsTest, GrandchildrenEndWithTheirRank) {
  const Mark mark;
  const auto result =
      launch_shell({"--nproc", "3"}, "[ $RANK = 2 ] && exit 9; " + kSleeper, mark.environment());
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_TRUE(mark.processes().empty());
}

TEST(LaunchFaultsTest, WhatLeftItsGroupOrIgnoresSignalsIsEndedToo) {
  const Mark mark;
  const auto result =
      launch_shell({"--shutdown-timeout", "0.3"},
                   "setsid sleep 100 & (trap '' TERM; sleep 100) & setsid sh -c 'trap "
                   "\"\" TERM; sleep 100' & sleep 0.1; exit 9",
                   mark.environment());
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_TRUE(mark.processes().empty());
}

TEST(LaunchFaultsTest, WhatLeftItsGroupIsAskedFirstAsTheRanksAre) {
  const Mark mark;
  const TemporaryFolder folder;
  const std::string up = (folder / "up").string();
  Process process(shell_job({}, "setsid sh -c 'trap \"echo asked; exit\" TERM; touch " + up +
                                    "; while :; do sleep 0.02; done' & until [ -e " + up +
                                    " ]; do sleep 0.02; done; exit 9"),
                  mark.environment());
  const auto result = process.wait(20s);
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_THAT(result.out, HasSubstr("asked"));
  EXPECT_TRUE(mark.processes().empty());
}

TEST(LaunchFaultsTest, WhatAFinishedJobLeftBehindIsEnded) {
  const Mark mark;
  const auto result = launch_shell({"--nproc", "2"}, "sleep 100 & exit 0", mark.environment());
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(mark.processes().empty());
}

TEST(LaunchFaultsTest, ASignalToTheLauncherEndsAllAndIsItsExitCode) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const Mark mark;
    Process process(shell_job({"--nproc", "2"}, "exec sleep 100"), mark.environment());
    mark.wait_for(4);
    process.signal(signal);
    const auto result = process.wait(3s);
    EXPECT_EQ(result.exit_code, 128 + signal);
    EXPECT_THAT(result.err, Not(HasSubstr("failed first")));
    EXPECT_TRUE(mark.processes().empty());
  }
}

TEST(LaunchFaultsTest, ASignalToTheLaunchersWholeGroupReachesRanksOnce) {
  const Mark mark;
  Process process(
      {"setsid", "--wait", BELLOWS_PROGRAM, "launch", "--nproc", "2", "--", "sh", "-c",
       "n=0; trap 'n=$((n+1))' INT; echo ready; i=0; while [ $i -lt 40 ]; do sleep 0.02; "
       "i=$((i+1)); done; echo signals $n; exit 75"},
      mark.environment());
  wait_for_lines(process, 2);
  for (const pid_t pid : mark.processes()) {
    std::ifstream name("/proc/" + std::to_string(pid) + "/comm");
    std::string text;
    std::getline(name, text);
    if (text == "bellows") ::kill(-pid, SIGINT);  // leads a group of its own, as below a shell
  }
  const auto result = process.wait(20s);
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[rank 0] signals 1"), HasSubstr("[rank 1] signals 1")));
}

/// Ends with 75 after a moment, as training does; a second signal would end it at once.
const std::string kSaver =
    "trap 'trap - TERM INT; sleep 0.2; echo saved; exit 75' TERM INT; echo ready; "
    "while :; do sleep 0.02; done";

TEST(LaunchFaultsTest, PreemptionIsPassedOnOnceAndIsNoFailure) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    const Mark mark;
    Process process(
        shell_job({"--nproc", "3", "--max-restarts", "3", "--signals-to-handle", "SIGUSR1"},
                  kSaver),
        mark.environment());
    wait_for_lines(process, 3);
    process.signal(signal);
    const auto result = process.wait(10s);
    EXPECT_EQ(result.exit_code, 75) << result.err;
    EXPECT_EQ(lines_of(result.out).size(), 6U) << result.out;
    EXPECT_THAT(result.err, AllOf(Not(HasSubstr("failed")), Not(HasSubstr("restart"))));
    EXPECT_TRUE(mark.processes().empty());
  }
}

TEST(LaunchFaultsTest, ARankThatSomebodyElseAskedToSaveTakesTheOthersAlong) {
  Process process(shell_job({"--nproc", "2", "--max-restarts", "1"}, "echo $$; " + kSaver));
  wait_for_lines(process, 4);
  std::istringstream words(process.out_so_far());
  std::string bracket, rank, pid;
  words >> bracket >> rank >> pid;
  ::kill(std::stoi(pid), SIGTERM);
  const auto result = process.wait(20s);
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("failed")));
}

TEST(LaunchFaultsTest, AFailureWhileSavingIsAFailure) {
  Process process(
      shell_job({"--nproc", "2"},
                "trap 'echo no space left >&2; exit $((RANK ? 1 : 75))' TERM; echo ready; "
                "while :; do sleep 0.02; done"));
  wait_for_lines(process, 2);
  process.signal(SIGTERM);
  const auto result = process.wait(10s);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 1 failed first: "), HasSubstr("no space left")));
}

TEST(LaunchFaultsTest, ASecondSignalEndsAtOnce) {
  const Mark mark;
  Process process(shell_job({"--nproc", "2"},
                            "trap 'echo asked' TERM; echo ready; while :; do sleep "
                            "0.02; done"),
                  mark.environment());
  wait_for_lines(process, 2);
  process.signal(SIGTERM);
  wait_for_lines(process, 4);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(4s).exit_code, 128 + SIGTERM);
  EXPECT_TRUE(mark.processes().empty());
}

TEST(LaunchFaultsTest, ASignalWhileStartingLosesNoRank) {
  std::mt19937 random(6);
  for (int round = 0; round < 40 * repeats(); ++round) {
    const Mark mark;
    Process process(shell_job({"--nproc", "4"}, "exec sleep 100"), mark.environment());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    process.signal(SIGTERM);
    EXPECT_EQ(process.wait(10s).exit_code, 128 + SIGTERM);
    EXPECT_TRUE(mark.gone_within(1s));
  }
}

TEST(LaunchFaultsTest, ARankThatHasJustStartedIsGivenAMomentToInstallItsHandlers) {
  const Mark mark;
  const auto before = std::chrono::steady_clock::now();
  Process process(shell_job({}, "exec sleep 100"), mark.environment());
  mark.wait_for(3);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(10s).exit_code, 128 + SIGTERM);
  EXPECT_GE(std::chrono::steady_clock::now() - before, 100ms);
}

TEST(LaunchFaultsTest, AStoppedRankIsSeenAndEnded) {
  const TemporaryFolder folder;
  const std::string file = (folder / "pid").string();
  const auto result =
      launch_shell({"--nproc", "2"},
                   "if [ $RANK = 0 ]; then echo $$ >" + file + "; kill -STOP $$; sleep 100; fi; " +
                       "until grep -q '^State:.T' /proc/$(cat " + file +
                       ")/status; do sleep 0.02; done 2>/dev/null; kill -QUIT $PPID; sleep 0.3; "
                       "exit 4");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("STOPPED (SIGSTOP)"));
  EXPECT_THAT(result.err, HasSubstr("rank 0: stopped by the launcher (SIGTERM)"));
}

char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  return text.empty() ? '-' : text[text.rfind(')') + 2];
}

TEST(LaunchFaultsTest, TheTerminalsStopAndContinueReachTheRanks) {
  const Mark mark;
  Process process(shell_job({"--nproc", "2"}, "exec sleep 100"), mark.environment());
  mark.wait_for(4);
  const auto all_stopped = [&](bool stopped) {
    for (int i = 0; i < 500; ++i) {
      int count = 0;
      for (const pid_t pid : mark.processes()) count += state_of(pid) == 'T';
      if (count == (stopped ? 3 : 0)) return true;  // the launcher and two ranks; not the guard
      std::this_thread::sleep_for(10ms);
    }
    return false;
  };
  std::this_thread::sleep_for(50ms);
  process.signal(SIGTSTP);
  EXPECT_TRUE(all_stopped(true));
  process.signal(SIGCONT);
  EXPECT_TRUE(all_stopped(false));
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(5s).exit_code, 128 + SIGTERM);
}

TEST(LaunchFaultsTest, AHangUpThatTheParentIgnoredStaysIgnored) {
  Process process({"sh", "-c", "trap '' HUP; exec \"$@\"", "sh", BELLOWS_PROGRAM, "launch", "--",
                   "sh", "-c", "sleep 0.5; echo whole"});
  std::this_thread::sleep_for(200ms);
  process.signal(SIGHUP);
  const auto result = process.wait(10s);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "[rank 0] whole\n");
}

TEST(LaunchFaultsTest, OthersOfTheLaunchersGroupAreLetBe) {
  const auto result =
      run({"setsid", "--wait", "sh", "-c",
           "sleep 100 & other=$!; \"$0\" launch --nproc 2 -- sh -c '[ $RANK = 1 ] && "
           "exit 6; sleep 100'; code=$?; kill -0 $other && echo alive $code; kill $other",
           BELLOWS_PROGRAM});
  EXPECT_EQ(result.out, "alive 6\n");
}

TEST(LaunchFaultsTest, OrphansOfRanksDoNotStayAsZombies) {
  const Mark mark;
  Process process(shell_job({},
                            "i=0; while [ $i -lt 50 ]; do (true &); i=$((i+1)); done; echo ready; "
                            "exec sleep 100"),
                  mark.environment());
  wait_for_lines(process, 1);
  const std::string id = std::to_string(process.pid());
  size_t children = 0;
  for (int i = 0; i < 500 && children != 2; ++i) {
    std::ifstream file("/proc/" + id + "/task/" + id + "/children");
    children = static_cast<size_t>(std::distance(std::istream_iterator<pid_t>(file), {}));
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(children, 2U);  // the rank and the guard
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(5s).exit_code, 128 + SIGTERM);
}

TEST(LaunchFaultsTest, TwentyJobsAtOnceDoNotMeet) {
  std::list<Process> jobs;
  for (int i = 0; i < 20; ++i) {
    jobs.emplace_back(
        shell_job({"--nproc", "2"}, "sleep 0.5; echo $MASTER_PORT $TORCHELASTIC_RUN_ID"));
  }
  std::set<std::string> ports, names;
  for (auto& job : jobs) {
    const auto result = job.wait(60s);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::istringstream words(result.out);
    for (std::string bracket, rank, port, name; words >> bracket >> rank >> port >> name;) {
      ports.insert(port);
      names.insert(name);
    }
  }
  EXPECT_EQ(ports.size(), 20U);
  EXPECT_EQ(names.size(), 20U);
}

TEST(LaunchFaultsTest, FewDescriptorsAreEnoughForAFewRanksAndElseAnError) {
  const Mark mark;
  const auto limited = [&](const std::string& ranks) {
    return Process({"bash", "-c",
                    "ulimit -n 64; exec \"$0\" launch --nproc \"$1\" -- sh -c 'ulimit -n'",
                    BELLOWS_PROGRAM, ranks},
                   mark.environment())
        .wait(20s);
  };
  const auto few = limited("8");
  EXPECT_EQ(few.exit_code, 0) << few.err;
  EXPECT_EQ(lines_of(few.out).size(), 8U);
  EXPECT_THAT(few.out, HasSubstr("[rank 7] 64"));
  const auto many = limited("60");
  EXPECT_EQ(many.exit_code, 3);
  EXPECT_THAT(many.err, AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n")));
  EXPECT_TRUE(mark.processes().empty());
}

TEST(LaunchFaultsTest, ASoftLimitOfDescriptorsIsTheRanksAlone) {
  const auto result =
      run({"bash", "-c", "ulimit -Sn 32; exec \"$0\" launch --nproc 16 -- sh -c 'ulimit -n'",
           BELLOWS_PROGRAM});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(lines_of(result.out).size(), 16U);
  EXPECT_THAT(result.out, HasSubstr("[rank 15] 32"));
}

TEST(LaunchFaultsTest, ClosedStandardStreamsDoNotMatter) {
  const TemporaryFolder folder;
  for (const std::string& closed :
       std::vector<std::string>{"<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"}) {
    const std::string file = (folder / "codes").string();
    const auto result = run(
        {"bash", "-c",
         "\"$0\" launch --nproc 2 -- sh -c 'echo x; echo y >&2; echo $RANK >>\"$1\"' sh \"$1\" " +
             closed,
         BELLOWS_PROGRAM, file});
    EXPECT_EQ(result.exit_code, 0) << closed << result.err;
    std::ifstream input(file);
    EXPECT_EQ(std::distance(std::istream_iterator<int>(input), {}), 2) << closed;
    fs::remove(file);
  }
}

TEST(LaunchFaultsTest, AProgramThatCannotBeExecutedIsAnErrorOfUsage) {
  const TemporaryFolder folder;
  std::ofstream(folder / "empty") << "no program";
  fs::permissions(folder / "empty", fs::perms::owner_all);
  for (const std::string& program :
       {(folder / "empty").string(), (folder / "absent").string(), folder.path().string(),
        std::string("no-such-program-anywhere")}) {
    const auto result = launch({"--nproc", "2", "--max-restarts", "2", program});
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(program));
  }
}

TEST(LaunchFaultsTest, ATakenPortIsAnErrorThatNamesIt) {
  Process holder(shell_job({}, "echo $MASTER_PORT; exec " TEST_RANK " master hang"));
  while (holder.running() && holder.out_so_far().find("listens") == std::string::npos) {
    std::this_thread::sleep_for(2ms);
  }
  std::istringstream words(holder.out_so_far());
  std::string bracket, rank, port;
  words >> bracket >> rank >> port;
  const auto taken = launch({"--master-port", port, "true"});
  EXPECT_EQ(taken.exit_code, 3);
  EXPECT_THAT(taken.err, AllOf(HasSubstr("port " + port), HasSubstr("leave out --master-port")));
  const auto foreign = launch({"--master-addr", "192.0.2.1", "true"});
  EXPECT_EQ(foreign.exit_code, 3);
  EXPECT_THAT(foreign.err, AllOf(HasSubstr("192.0.2.1"), HasSubstr("--master-addr")));
}

}  // namespace
}  // namespace bellows::testing
