// spawn() from a program of its own: its main calls spawn_entry() first.
#include "bellows/parallel/spawn.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <iostream>
#include <sstream>
#include <thread>
#include <unistd.h>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/device/init.h"
#include "bellows/parallel/group.h"
#include "bellows/parallel/init.h"
#include "tests/support/process.h"

namespace bellows::parallel {
namespace {
using namespace std::chrono_literals;
namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

int sum(const Words& words) {
  bellows::init();
  const Group group = init();
  const at::Tensor ones = group.all_reduced(at::ones({1}));
  std::ofstream(words.at(0) + "/" + std::to_string(group.rank())) << ones.item<double>();
  return 0;
}

int fail_on_1(const Words& words) {
  bellows::init();
  const Group group = init({.timeout = 5s});
  if (group.rank() == 1 && words.at(0) == "throw") throw ValueError("bad data row 12");
  if (group.rank() == 1 && words.at(0) == "exit") std::exit(9);
  if (group.rank() == 1) ::raise(SIGKILL);
  group.barrier();
  return 0;
}

int sleep_long(const Words& words) {
  std::ofstream(words.at(0) + "/" + std::getenv("RANK")) << ::getpid();
  std::this_thread::sleep_for(100s);
  return 0;
}

/// A process that spawns, itself to be killed.
int nest(const Words& words) {
  spawn(2, "sleep_long", words);
  return 0;
}

const bool known = register_entry("sum", sum) && register_entry("fail_on_1", fail_on_1) &&
                   register_entry("sleep_long", sleep_long) && register_entry("nest", nest);

std::string contents(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(SpawnTest, RanksMeet) {
  ASSERT_TRUE(known);
  const testing::TemporaryFolder folder;
  spawn(3, "sum", {folder.path().string()});
  for (const std::string rank : {"0", "1", "2"}) EXPECT_EQ(contents(folder / rank), "3");
}

TEST(SpawnTest, TheFirstFailingRankIsNamedWithItsExceptionAndCode) {
  const auto failure = [](const std::string& how) {
    try {
      spawn(2, "fail_on_1", {how});
    } catch (const SpawnError& error) {
      return error;
    }
    ADD_FAILURE() << how;
    return SpawnError("", 0);
  };
  const SpawnError thrown = failure("throw"), ended = failure("exit"), killed = failure("kill");
  EXPECT_THAT(thrown.what(), AllOf(HasSubstr("rank 1 failed first"), HasSubstr("bad data row 12")));
  EXPECT_EQ(thrown.exit_code(), 1);
  EXPECT_THAT(ended.what(), HasSubstr("rank 1 failed first"));
  EXPECT_EQ(ended.exit_code(), 9);
  EXPECT_THAT(killed.what(), AllOf(HasSubstr("rank 1 failed first"), HasSubstr("SIGKILL")));
  EXPECT_EQ(killed.exit_code(), 128 + SIGKILL);
}

TEST(SpawnTest, MistakesAreErrors) {
  EXPECT_THROW(spawn(0, "sum"), ValueError);
  EXPECT_THROW(spawn(2, "summ"), ValueError);
  EXPECT_THROW(register_entry("sum", sum), ValueError);
}

TEST(SpawnTest, RanksEndWithTheProcessThatSpawnedThem) {
  const testing::TemporaryFolder folder;
  testing::Process process({"/proc/self/exe", folder.path().string()},
                           {{"BELLOWS_SPAWN", "run:nest"}});
  Words pids;
  for (int i = 0; i < 2000 && pids.size() < 2; ++i) {
    std::this_thread::sleep_for(10ms);
    pids.clear();
    for (const std::string rank : {"0", "1"}) {
      if (const auto pid = contents(folder / rank); !pid.empty()) pids.push_back(pid);
    }
  }
  ASSERT_EQ(pids.size(), 2U);
  process.signal(SIGKILL);
  bool alive = true;
  for (int i = 0; i < 200 && alive; ++i) {
    std::this_thread::sleep_for(10ms);
    alive = fs::exists("/proc/" + pids[0]) || fs::exists("/proc/" + pids[1]);
  }
  EXPECT_FALSE(alive);
}

}  // namespace
}  // namespace bellows::parallel

int main(int argc, char** argv) {
  bellows::parallel::spawn_entry(argc, argv);
  bellows::init();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
