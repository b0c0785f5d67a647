// Ranks that are killed, stopped, asleep or gone: every survivor names them and nobody else, in
// time, and nothing is left behind. BELLOWS_FAULT_REPEAT=20 repeats what is drawn.
#include <algorithm>
#include <arpa/inet.h>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <gmock/gmock.h>
#include <list>
#include <random>
#include <sstream>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/support/process.h"

namespace bellows::testing {
namespace {
using namespace std::chrono_literals;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

int repeats() {
  const char* text = std::getenv("BELLOWS_FAULT_REPEAT");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

int64_t memory_kib(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

/// Ranks of one job, each a process.
class Job {
 public:
  Job(int ranks, const std::vector<std::string>& arguments) : port_(free_port()) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<std::string> words = {TEST_RANK};
      words.insert(words.end(), arguments.begin(), arguments.end());
      processes_.emplace_back(
          words, std::map<std::string, std::string>{{"RANK", std::to_string(rank)},
                                                    {"WORLD_SIZE", std::to_string(ranks)},
                                                    {"LOCAL_RANK", std::to_string(rank)},
                                                    {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                    {"MASTER_PORT", std::to_string(port_)},
                                                    {"OMP_NUM_THREADS", "1"}});
    }
  }
  int port() const { return port_; }
  int size() const { return static_cast<int>(processes_.size()); }
  Process& operator[](int rank) { return *std::next(processes_.begin(), rank); }
  void wait_until_met() {
    for (auto& process : processes_) {
      const double end = now() + 60;
      while (process.out_so_far().find("pid") == std::string::npos && process.running() &&
             now() < end) {
        std::this_thread::sleep_for(5ms);
      }
    }
  }

 private:
  int port_;
  std::list<Process> processes_;
};

struct Outcome {
  double at = 0, cpu = 0;
  std::string ranks, text;
};

Outcome outcome_of(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 7) << result.out << result.err;
  Outcome outcome;
  const size_t line = result.out.find("at ");
  if (line == std::string::npos) return outcome;
  std::istringstream input(result.out.substr(line));
  std::string word;
  input >> word >> outcome.at >> word >> outcome.cpu >> word;
  std::getline(input, outcome.ranks, ':');
  std::getline(input, outcome.text);
  return outcome;
}

/// Each but `victim` names it and no other before `deadline` (of now()).
void expect_named(Job& job, int victim, double deadline, const std::string& how) {
  for (int rank = 0; rank < job.size(); ++rank) {
    if (rank == victim) continue;
    const Outcome outcome = outcome_of(job[rank].wait(30s));
    EXPECT_EQ(outcome.ranks, " " + std::to_string(victim))
        << "rank " << rank << ":" << outcome.text;
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("rank " + std::to_string(rank) + " of " +
                                              std::to_string(job.size())),
                                    HasSubstr(how)));
    EXPECT_LT(outcome.at, deadline) << "rank " << rank << ":" << outcome.text;
    EXPECT_LT(outcome.cpu, 2.0);
  }
}

class ParallelFaultsTest : public ::testing::TestWithParam<int> {};

TEST_P(ParallelFaultsTest, AKilledRankIsNamedByEverySurvivor) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  for (int round = 0; round < repeats() * 2; ++round) {
    const int victim =
        round % 2 == 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(GetParam()));
    Job job(GetParam(), {"3000", "reduce", "200000", "1000000000"});
    job.wait_until_met();
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 400));
    const double killed = now();
    job[victim].signal(SIGKILL);
    expect_named(job, victim, killed + 4.0, "was not heard from");
  }
}

TEST_P(ParallelFaultsTest, AStoppedRankIsNamedAndEndsByItselfOnceItGoesOn) {
  for (int victim = 0; victim < GetParam(); victim += GetParam() - 1) {
    Job job(GetParam(), {"3000", "reduce", "1000", "1000000000"});
    job.wait_until_met();
    std::this_thread::sleep_for(300ms);
    const double stopped = now();
    job[victim].signal(SIGSTOP);
    expect_named(job, victim, stopped + 4.0, "was not heard from");
    job[victim].signal(SIGCONT);
    EXPECT_EQ(job[victim].wait(15s).exit_code, 7);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParallelFaultsTest, ::testing::Values(2, 4));

TEST(ParallelFaultsTest, WaitersUseLittleOfTheProcessor) {
  Job job(2, {"3000", "sleep", "1", "2"});
  job.wait_until_met();
  // Rank 0 waits a second in the barrier.
  const Outcome outcome = outcome_of(job[0].wait(30s));
  EXPECT_LT(outcome.cpu, 0.2) << outcome.text;
  EXPECT_EQ(outcome.ranks, " 1");
}

TEST(ParallelFaultsTest, ASleeperIsNamedAndEndsAsWell) {
  Job job(3, {"30000", "sleep", "2", "4"});
  job.wait_until_met();
  expect_named(job, 2, now() + 3.0, "rank 2 is elsewhere");
  const Outcome sleeper = outcome_of(job[2].wait(30s));
  EXPECT_EQ(sleeper.ranks, " 2");
  EXPECT_THAT(sleeper.text, HasSubstr("this rank (rank 2) is elsewhere"));
}

TEST(ParallelFaultsTest, WhoLeavesEarlyIsNamed) {
  for (const int victim : {0, 2}) {
    Job job(3, {"3000", "leave", std::to_string(victim)});
    job.wait_until_met();
    expect_named(job, victim, now() + 5.0, "rank " + std::to_string(victim));
    EXPECT_EQ(job[victim].wait(5s).exit_code, 0);
  }
}

TEST(ParallelFaultsTest, WhoThrowsIsNamedByTheOthers) {
  Job job(3, {"3000", "throw", "1"});
  job.wait_until_met();
  expect_named(job, 1, now() + 5.0, "rank 1");
  const auto result = job[1].wait(5s);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("bad data row 12"));
}

TEST(ParallelFaultsTest, ShapesThatDifferEndEveryRankWithBothSides) {
  Job job(2, {"3000", "differ"});
  for (int rank = 0; rank < 2; ++rank) {
    const Outcome outcome = outcome_of(job[rank].wait(20s));
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("float32 [11]"), HasSubstr("float32 [12]")));
  }
}

TEST(ParallelFaultsTest, RanksThatDoNotComeAreNamed) {
  Job job(2, {"1500", "reduce", "10", "10"});
  job[1].signal(SIGKILL);
  const auto result = job[0].wait(20s);
  EXPECT_EQ(result.exit_code, 7) << result.out;
  EXPECT_THAT(result.out, AllOf(HasSubstr("ranks 1:"), HasSubstr("rank 1 did not come within")));
}

TEST(ParallelFaultsTest, AStoreThatIsNotThereNamesRankZero) {
  Job job(2, {"2000", "reduce", "10", "10"});
  job[0].signal(SIGKILL);
  const auto result = job[1].wait(20s);
  EXPECT_EQ(result.exit_code, 7) << result.out;
  EXPECT_THAT(result.out, AllOf(HasSubstr("ranks 0:"), HasSubstr("rank 0")));
}

TEST(ParallelFaultsTest, GarbageOnTheRendezvousPortChangesNothing) {
  Job job(2, {"20000", "reduce", "1000", "20000"});
  job.wait_until_met();
  const int64_t before = memory_kib(job[0].pid());
  std::mt19937 random(3);
  std::vector<int> open;
  for (int i = 0; i < 1000 && job[0].running(); ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(job.port()));
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && i % 3 != 0) {
      std::string bytes(random() % 300, '\0');
      for (char& c : bytes) c = static_cast<char>(random());
      (void)::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (i % 2 == 0 && open.size() < 300) {
      open.push_back(fd);  // half open
    } else {
      ::close(fd);
    }
  }
  const int64_t after = memory_kib(job[0].pid());
  for (int rank = 0; rank < 2; ++rank) {
    const auto result = job[rank].wait(100s);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("done"));
  }
  EXPECT_LT(after - before, 10 * 1024);
  for (const int fd : open) ::close(fd);
}

}  // namespace
}  // namespace bellows::testing
