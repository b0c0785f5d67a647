#include "bellows/launch/flags.h"

#include <csignal>
#include <cstdlib>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/launch/environment.h"

namespace bellows::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Options parsed(std::vector<std::string> words) {
  words.insert(words.end(), {"--", "program", "--tee", "x"});
  const auto options = parse_flags(words);
  EXPECT_TRUE(options);
  EXPECT_THAT(options->program, ElementsAre("program", "--tee", "x"));
  return *options;
}

std::string refused(const std::vector<std::string>& words) {
  try {
    parse_flags(words);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

TEST(LaunchFlagsTest, TakesTorchrunsSpellings) {
  EXPECT_EQ(parsed({"--nproc-per-node", "4"}).ranks, 4);
  EXPECT_EQ(parsed({"--nproc_per_node=4"}).ranks, 4);
  EXPECT_EQ(parsed({"--nproc", "4"}).ranks, 4);
  EXPECT_EQ(parsed({"--max_restarts=2", "--nnodes=1:1", "--no_python"}).max_restarts, 2);
  EXPECT_THAT(parse_flags({"--standalone", "program", "-x", "--", "y"})->program,
              ElementsAre("program", "-x", "--", "y"));
  EXPECT_FALSE(parse_flags({"--help"}));
  EXPECT_FALSE(parse_flags({"--nproc", "2", "-h"}));
}

TEST(LaunchFlagsTest, StreamsAreGivenForAllRanksOrForEach) {
  EXPECT_THAT(parsed({"--nproc", "2", "-r", "3", "-t1"}).redirects, ElementsAre(kBoth, kBoth));
  EXPECT_THAT(parsed({"--nproc", "2", "-r3", "-t", "1"}).tee, ElementsAre(kOut, kOut));
  EXPECT_THAT(parsed({"--nproc", "3", "-r", "0:1,2:2"}).redirects,
              ElementsAre(kOut, kNoStream, kErr));
  EXPECT_THAT(parsed({"--nproc", "2", "--log-dir", "x"}).tee, ElementsAre(kBoth, kBoth));
  EXPECT_THAT(parsed({"--nproc", "2", "--log-dir", "x", "-r", "1"}).tee,
              ElementsAre(kNoStream, kNoStream));
}

TEST(LaunchFlagsTest, TheStoresPlaceComesFromEndpointOrMaster) {
  const Options endpoint = parsed({"--rdzv-endpoint", "localhost:4711", "--rdzv-backend=c10d"});
  EXPECT_EQ(endpoint.master_address, "localhost");
  EXPECT_EQ(endpoint.master_port, 4711);
  EXPECT_EQ(parsed({"--rdzv-endpoint", "[::1]:4711"}).master_address, "::1");
  const Options both = parsed({"--master-addr=127.0.0.2", "--master-port", "4711"});
  EXPECT_EQ(both.master_address, "127.0.0.2");
  EXPECT_EQ(both.master_port, 4711);
  const Options alone = parsed({"--standalone", "--rdzv-endpoint=h:1", "--rdzv-id", "x"});
  EXPECT_EQ(alone.master_port, 0);
  EXPECT_EQ(alone.run_id, "");
  EXPECT_THAT(alone.notes, ElementsAre(HasSubstr("no effect")));
  EXPECT_THAT(refused({"--rdzv-endpoint", "h:1", "--master-port", "2", "program"}),
              HasSubstr("differ"));
}

TEST(LaunchFlagsTest, SeveralNodesMeetAtTheEndpoint) {
  const Options fixed = parsed({"--nnodes", "3", "--node-rank", "2", "--master-addr", "10.0.0.1"});
  EXPECT_EQ(fixed.nodes.least, 3);
  EXPECT_EQ(fixed.nodes.most, 3);
  EXPECT_TRUE(fixed.nodes.fixed);
  EXPECT_EQ(fixed.nodes.rank, 2);
  EXPECT_EQ(fixed.nodes.host, "10.0.0.1");
  EXPECT_EQ(fixed.nodes.port, 29500);
  EXPECT_EQ(fixed.run_id, "none");
  const Options elastic =
      parsed({"--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=[fd00::1]", "--rdzv-id=j",
              "--local-addr", "fd00::2", "--rdzv-conf",
              "join_timeout=60,last_call_timeout=2.5,close_timeout=3,keep_alive_interval=1,"
              "keep_alive_max_attempt=2,heartbeat_timeout=4,is_host=True,read_timeout=9"});
  EXPECT_EQ(elastic.nodes.least, 1);
  EXPECT_EQ(elastic.nodes.most, 4);
  EXPECT_FALSE(elastic.nodes.fixed);
  EXPECT_EQ(elastic.nodes.host, "fd00::1");
  EXPECT_EQ(elastic.nodes.port, 29400);
  EXPECT_EQ(elastic.nodes.local_address, "fd00::2");
  EXPECT_EQ(elastic.run_id, "j");
  EXPECT_EQ(elastic.nodes.join, 60);
  EXPECT_EQ(elastic.nodes.last_call, 2.5);
  EXPECT_EQ(elastic.nodes.close, 3);
  EXPECT_EQ(elastic.nodes.keep_alive, 1);
  EXPECT_EQ(elastic.nodes.attempts, 2);
  EXPECT_EQ(elastic.nodes.call, 4);
  EXPECT_EQ(elastic.nodes.has_store, true);
  EXPECT_THAT(elastic.notes, ElementsAre(HasSubstr("read_timeout has no effect")));
  EXPECT_EQ(parsed({"--numa-binding", "core-complex"}).binding, Binding::core_complex);
  EXPECT_EQ(parsed({"--bind-to=core"}).binding, Binding::core);
  EXPECT_EQ(parsed({"--bind-to=none"}).binding, Binding::none);
}

TEST(LaunchFlagsTest, TimesSignalsAndRanks) {
  EXPECT_EQ(parsed({"--shutdown-timeout", "0.5"}).shutdown_timeout, std::chrono::milliseconds(500));
  EXPECT_THAT(parsed({"--signals-to-handle", "SIGTERM,USR1"}).stop_signals,
              ElementsAre(SIGUSR1, SIGTERM));
  EXPECT_THAT(parsed({"--nproc", "4", "--local_ranks_filter", "0,2"}).shown_ranks,
              ElementsAre(0, 2));
}

TEST(LaunchFlagsTest, AVariableStandsForAFlagThatIsNotGiven) {
  setenv("PET_NPROC_PER_NODE", "3", 1);
  setenv("PET_STANDALONE", "0", 1);
  setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7", 1);
  EXPECT_EQ(parsed({}).ranks, 3);
  EXPECT_EQ(parsed({"--nproc-per-node=2"}).ranks, 2);
  EXPECT_EQ(parsed({}).shutdown_timeout, std::chrono::seconds(7));
  setenv("PET_NPROC_PER_NODE", "x", 1);
  EXPECT_THAT(refused({"program"}), HasSubstr("PET_NPROC_PER_NODE: --nproc-per-node: got 'x'"));
  unsetenv("PET_NPROC_PER_NODE");
  unsetenv("PET_STANDALONE");
  unsetenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
}

TEST(LaunchFlagsTest, WhatIsWrongIsNamedWithWhatIsExpected) {
  const auto expect = [](std::vector<std::string> words, const char* what) {
    words.emplace_back("program");
    EXPECT_THAT(refused(words), HasSubstr(what));
  };
  expect({"--nproc-per-node", "0"}, "got '0', expected a whole number from 1 to 4096");
  expect({"--nproc-per-node", "two"}, "a number of ranks, auto, cpu or gpu");
  expect({"--nproc-per-node", "99999999999999999999"}, "expected a whole number");
  expect({"--nnodes", "2:"}, "expected a whole number");
  expect({"--nnodes", "0:4"}, "from 1 to 4096");
  expect({"--nnodes", "2", "--rdzv-backend", "c10d"}, "meet at --rdzv-endpoint HOST:PORT");
  expect({"--nnodes", "2", "--node-rank", "2"}, "a number from 0 to 1");
  expect({"--nnodes", "2", "--standalone"}, "this machine alone");
  expect({"--nnodes", "2", "--rdzv-conf", "join_timeot=3"}, "unknown key 'join_timeot'");
  expect({"--nnodes", "2", "--rdzv-conf", "join_timeout=0"}, "more than 0 seconds");
  expect({"--nnodes", "2", "--rdzv-conf", "keep_alive_max_attempt=0"}, "from 1 to");
  expect({"--nnodes", "2", "--rdzv-conf", "is_host=maybe"}, "true or false");
  expect({"--nnodes", "2", "--rdzv-conf", "store_type=file"}, "expected tcp");
  expect({"--numa-binding", "core"}, "node, socket, exclusive or core-complex");
  expect({"--bind-to", "socket"}, "core or none");
  expect({"--bind-to", "core", "--numa-binding", "node"}, "give one of them");
  expect({"--nnodes", "2:1"}, "MIN:MAX");
  expect({"--node-rank", "1"}, "there is one node");
  expect({"--max-restarts", "-1"}, "got '-1'");
  expect({"--rdzv-backend", "etcd"}, "c10d or static");
  expect({"--rdzv-conf", "timeout"}, "KEY=VALUE");
  expect({"--rdzv-id", "../x"}, "a name without '/'");
  expect({"--redirects", "4"}, "3 (both)");
  expect({"--redirects", "0:4"}, "3 (both)");
  expect({"--redirects", "1:1"}, "from 0 to 0");
  expect({"--tee", ""}, "3 (both)");
  expect({"--local-ranks-filter", "1"}, "from 0 to 0");
  expect({"--shutdown-timeout", "nan"}, "seconds");
  expect({"--shutdown-timeout", "-1"}, "seconds");
  expect({"--signals-to-handle", "SIGKILL"}, "can be caught");
  expect({"--master-port", "65536"}, "65535");
  expect({"--nproc-per-nod3", "2"}, "did you mean '--nproc-per-node'");
  expect({"--frobnicate"}, "unknown flag '--frobnicate'");
  expect({"-m"}, "python -m");
  expect({"-x"}, "unknown flag '-x'");
  EXPECT_THAT(refused({"--master-port"}), HasSubstr("--master-port needs a value"));
  EXPECT_THAT(refused({}), HasSubstr("no program"));
  EXPECT_THAT(refused({"--"}), HasSubstr("no program"));
}

TEST(LaunchFlagsTest, FlagsWithoutEffectAreSaid) {
  EXPECT_THAT(
      parsed({"--monitor-interval", "1", "--start-method=fork", "--rdzv-conf", "a=1"}).notes,
      ElementsAre(HasSubstr("--monitor-interval"), HasSubstr("--start-method"),
                  HasSubstr("--rdzv-conf")));
}

TEST(LaunchEnvironmentTest, CoresAreSharedAmongRanksRoundedDown) {
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(threads_per_rank(8, 4), "2");
  EXPECT_EQ(threads_per_rank(8, 3), "2");
  EXPECT_EQ(threads_per_rank(2, 4), "1");
  EXPECT_EQ(threads_per_rank(8, 1), "");
  setenv("OMP_NUM_THREADS", "5", 1);
  EXPECT_EQ(threads_per_rank(8, 4), "");
  unsetenv("OMP_NUM_THREADS");
  EXPECT_GE(usable_cores(), 1);
}

}  // namespace
}  // namespace bellows::launch
