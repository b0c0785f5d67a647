// Nodes that are killed, stopped or strange, on this machine: the others end or go on, and say
// which node it was. BELLOWS_FAULT_REPEAT=20 repeats what is drawn.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <gmock/gmock.h>
#include <list>
#include <poll.h>
#include <random>
#include <set>
#include <sstream>

#include "tests/nodes/job.h"
#include "tests/support/mark.h"

namespace bellows::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

int repeats() {
  const char* text = std::getenv("BELLOWS_FAULT_REPEAT");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

/// Ranks that say how many they are and wait, but for a job of `last` ranks, whose are done.
std::string until(int last) {
  return "echo ready $WORLD_SIZE $TORCHELASTIC_RESTART_COUNT; [ $WORLD_SIZE = " +
         std::to_string(last) + " ] && exit 0; exec sleep 100";
}

int64_t memory_kib(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

TEST(NodesFaultsTest, WithoutAKilledNodeTheOthersStartAnew) {
  for (int round = 0; round < repeats(); ++round) {
    const Mark mark;
    Job job(c10d("2:3", {"--max-restarts", "1", "--nproc", "2"}));
    for (int i = 0; i < 3; ++i) {
      job.add({}, {"sh", "-c", until(4)}, mark.environment());
      ASSERT_TRUE(job.store_is_there());
    }
    ASSERT_TRUE(job.wait_for("ready 6 0", 2));
    const pid_t victim = job[2].pid();
    job[2].signal(SIGKILL);
    for (const size_t node : {0U, 1U}) {
      const auto result = job[node].wait(30s);
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(count_of(result.out, "ready 4 1"), 2U);
      EXPECT_THAT(result.err, AllOf(HasSubstr("pid " + std::to_string(victim) + ") was lost"),
                                    HasSubstr("(restart 1 of 1)")));
    }
    EXPECT_TRUE(mark.gone_within(2s));
  }
}

TEST(NodesFaultsTest, AKilledNodeThatIsNeededEndsTheOthersWithItsName) {
  Job job(c10d("2", {"--max-restarts", "3"}));
  for (int i = 0; i < 2; ++i) {
    job.add_shell({}, kSleeper);
    ASSERT_TRUE(job.store_is_there());
  }
  ASSERT_TRUE(job.wait_for("ready 2", 1));
  const pid_t victim = job[1].pid();
  job[1].signal(SIGKILL);
  const auto result = job[0].wait(20s);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("pid " + std::to_string(victim) + ") was lost"),
                                HasSubstr("1 node left, --nnodes asks for at least 2")));
}

TEST(NodesFaultsTest, AStoppedNodeIsLeftBehindAndEndsOnceItGoesOn) {
  const Mark mark;
  Job job(c10d("2:3", {"--max-restarts", "1"}));
  for (int i = 0; i < 3; ++i) {
    job.add({}, {"sh", "-c", until(2)}, mark.environment());
    ASSERT_TRUE(job.store_is_there());
  }
  ASSERT_TRUE(job.wait_for("ready 3 0", 1));
  job[1].signal(SIGSTOP);
  for (const size_t node : {0U, 2U}) {
    const auto result = job[node].wait(30s);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("ready 2 1"));
  }
  job[1].signal(SIGCONT);
  const auto stopped = job[1].wait(20s);
  EXPECT_EQ(stopped.exit_code, 3) << stopped.err;
  EXPECT_TRUE(mark.gone_within(2s));
}

TEST(NodesFaultsTest, AStoppedNodeThatGoesOnWhileTheOthersRunIsToldSo) {
  Job job(c10d("2:3", {"--max-restarts", "1"}));
  for (int i = 0; i < 3; ++i) {
    job.add_shell({}, kSleeper);
    ASSERT_TRUE(job.store_is_there());
  }
  ASSERT_TRUE(job.wait_for("ready 3", 1));
  job[1].signal(SIGSTOP);
  ASSERT_TRUE(job.wait_for("ready 2", 1, {0, 2}));
  job[1].signal(SIGCONT);
  const auto result = job[1].wait(20s);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("was taken for lost"));
  job[0].signal(SIGTERM);
  EXPECT_EQ(job[2].wait(20s).exit_code, 128 + SIGTERM);
}

TEST(NodesFaultsTest, WithoutTheNodeThatHasTheStoreTheOthersEndAndNameIt) {
  const Mark mark;
  Job job(c10d("1:3", {"--max-restarts", "3"}));
  job.add({}, {"sh", "-c", kSleeper}, mark.environment());
  ASSERT_TRUE(job.store_is_there());
  for (int i = 0; i < 2; ++i) job.add({}, {"sh", "-c", kSleeper}, mark.environment());
  ASSERT_TRUE(job.wait_for("ready 3", 1));
  const std::string pid = "pid " + std::to_string(job[0].pid());
  job[0].signal(SIGKILL);
  for (const size_t node : {1U, 2U}) {
    const auto result = job[node].wait(10s);
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("the node that has the job's store, 127.0.0.1:"),
                                  HasSubstr(pid), HasSubstr("is gone")));
  }
  EXPECT_TRUE(mark.gone_within(2s));
}

TEST(NodesFaultsTest, AStoppedStoreEndsTheOthersInTimeAndItsNodeOnceItGoesOn) {
  Job job(c10d("2"));
  job.add_shell({}, kSleeper);
  ASSERT_TRUE(job.store_is_there());
  job.add_shell({}, kSleeper);
  ASSERT_TRUE(job.wait_for("ready 2", 1));
  job[0].signal(SIGSTOP);
  const auto result = job[1].wait(15s);
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("has not answered for 3 s"));
  job[0].signal(SIGCONT);
  const auto host = job[0].wait(20s);
  EXPECT_EQ(host.exit_code, 3) << host.err;
  EXPECT_THAT(host.err, HasSubstr("was lost"));
}

TEST(NodesFaultsTest, WhatIsNoStoreAtTheEndpointIsSaid) {
  const int port = free_port();
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ::listen(fd, 16);
  for (const bool speaks : {false, true}) {
    std::atomic<bool> over{false};
    std::thread server([&] {
      while (!over) {
        pollfd entry{fd, POLLIN, 0};
        if (::poll(&entry, 1, 50) != 1) continue;
        const int client = ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
        if (!speaks) continue;  // left open
        (void)::send(client, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL);
        ::close(client);
      }
    });
    Job job(c10d("2"), port);
    const auto result = job.add_shell({}, "exit 0").wait(30s);
    over = true;
    server.join();
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, HasSubstr("is not the store of a job of bellows launch"));
  }
  ::close(fd);
}

TEST(NodesFaultsTest, GarbageOnTheEndpointsPortChangesNothing) {
  Job job(c10d("2"));
  const std::string script = "echo ready; sleep 4; echo done";
  for (int i = 0; i < 2; ++i) job.add_shell({}, script);
  ASSERT_TRUE(job.wait_for("ready", 1));
  const int64_t before = memory_kib(job[0].pid()) + memory_kib(job[1].pid());
  std::mt19937 random(3);
  std::vector<int> open;
  for (int i = 0; i < 1000; ++i) {
    const int fd = connection(job.port());
    if (fd < 0) continue;
    if (i % 3 != 0) {
      std::string bytes(random() % 300, '\0');
      for (char& c : bytes) c = static_cast<char>(random());
      (void)::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (i % 2 == 0) {
      open.push_back(fd);
    } else {
      ::close(fd);
    }
  }
  EXPECT_GT(open.size(), 100U);
  const int64_t after = memory_kib(job[0].pid()) + memory_kib(job[1].pid());
  for (const auto& result : job.wait()) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("done"));
  }
  EXPECT_LT(after - before, 10 * 1024);
  for (const int fd : open) ::close(fd);
}

TEST(NodesFaultsTest, AWallClockThatIsSetChangesNothing) {
  const TemporaryFolder folder;
  const std::string file = (folder / "step").string();
  const auto set = [&](int seconds) { std::ofstream(file) << seconds << std::endl; };
  set(0);
  Job job(c10d("2"));
  for (int i = 0; i < 2; ++i) {
    job.add({},
            {"sh", "-c",
             "date +%s; " TEST_PARALLEL_RANK " 3000 reduce 1000 200000000 & "
             "child=$!; sleep 4; date +%s; kill -0 $child && echo alive; kill $child; exit 0"},
            {{"LD_PRELOAD", CLOCK_STEP}, {"CLOCK_STEP_FILE", file}});
  }
  ASSERT_TRUE(job.wait_for("pid", 1));
  for (const int seconds : {3600, -3600, 3600}) {  // the last one stays
    set(seconds);
    std::this_thread::sleep_for(300ms);
  }
  for (const auto& result : job.wait()) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("alive"));
    EXPECT_THAT(result.err, Not(HasSubstr("lost")));
    std::vector<int64_t> dates;  // the clock was set
    std::istringstream words(result.out);
    for (std::string word; words >> word;) {
      if (word.size() == 10 && word.find_first_not_of("0123456789") == std::string::npos)
        dates.push_back(std::stoll(word));
    }
    ASSERT_EQ(dates.size(), 2U) << result.out;
    EXPECT_GT(dates[1] - dates[0], 3500);
  }
}

TEST(NodesFaultsTest, TwentyJobsAtOnceDoNotMeet) {
  std::set<int> ports;
  while (ports.size() < 20) ports.insert(free_port());
  std::list<Job> jobs;
  for (const int port : ports) {
    jobs.emplace_back(Words{"--nnodes", "2", "--rdzv-backend", "c10d"}, port);
    for (int i = 0; i < 2; ++i) {
      jobs.back().add({}, {"sh", "-c", "echo $MASTER_PORT $RANK $WORLD_SIZE"});
    }
  }
  std::set<std::string> masters;
  for (auto& job : jobs) {
    std::set<std::string> ranks;
    for (const auto& result : job.wait(120s)) {
      EXPECT_EQ(result.exit_code, 0) << result.err;
      std::istringstream words(result.out);
      std::string bracket, number, master, rank, world;
      words >> bracket >> number >> master >> rank >> world;
      EXPECT_EQ(world, "2");
      ranks.insert(rank);
      masters.insert(master);
    }
    EXPECT_EQ(ranks.size(), 2U);
  }
  EXPECT_EQ(masters.size(), 20U);
}

}  // namespace
}  // namespace bellows::testing
