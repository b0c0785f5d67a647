// Groups themselves: making, closing, errors, subgroups, c10d's view of them.
#include "bellows/parallel/group.h"

#include <chrono>
#include <filesystem>
#include <gmock/gmock.h>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/device/device.h"
#include "bellows/device/sim.h"
#include "bellows/parallel/c10d.h"
#include "bellows/parallel/init.h"
#include "tests/support/threads.h"

namespace bellows::parallel {
namespace {
using namespace std::chrono_literals;

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

double seconds_of(const std::function<void()>& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The RankError that `act` throws.
RankError rank_error(const std::function<void()>& act) {
  try {
    act();
  } catch (const RankError& error) {
    return error;
  }
  ADD_FAILURE() << "expected a RankError";
  return {"", {}};
}

template <class E>
std::string text_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

size_t files() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(descriptors), end(descriptors)));
}

TEST(GroupTest, OneProcessIsAGroupWithoutThreads) {
  const int before = testing::threads_of_process();
  const Group group = init(Place{});
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.backend(), "none");
  EXPECT_EQ(group.name(), "world");
  const at::Tensor tensor = at::ones({2});
  group.all_reduce(tensor);
  group.barrier();
  group.monitored_barrier(1ms);
  EXPECT_EQ(group.subgroup({0}, "own")->name(), "own");
  EXPECT_EQ(testing::threads_of_process(), before);
  group.close();
  EXPECT_THAT(text_of<ValueError>([&] { group.barrier(); }), HasSubstr("closed"));
}

TEST(GroupTest, UnknownBackEndsAreNamedWithThoseThatAreThere) {
  EXPECT_THAT(text_of<ValueError>([] { init(Place{}, {.backend = "glo"}); }),
              AllOf(HasSubstr("did you mean 'gloo'"), HasSubstr("this program has")));
  EXPECT_THAT(backends(), ::testing::Contains("gloo"));
  EXPECT_THAT(text_of<ValueError>([] { init(Place{.rank = 2, .world_size = 2}); }),
              HasSubstr("rank 2 of 2"));
  EXPECT_THAT(text_of<ValueError>([] { init(Place{.world_size = 2}); }), HasSubstr("port 0"));
  EXPECT_THAT(text_of<ValueError>([] { init(Place{}, {.timeout = 0ms}); }), HasSubstr("time-out"));
}

TEST(GroupTest, ThreadsAndFilesAreGivenBack) {
  const int threads_before = testing::threads_of_process();
  run_threads(2, [](const Group& group) { group.barrier(); });
  const size_t files_before = files();  // with what LibTorch keeps
  for (int i = 0; i < 3; ++i) {
    run_threads(3, [](const Group& group) {
      group.all_reduce(at::ones({10}));
      group.subgroup({0, 1}, "two");
    });
  }
  EXPECT_EQ(testing::threads_settled(threads_before), threads_before);
  EXPECT_EQ(files(), files_before);
}

TEST(GroupTest, SubgroupsComputeAmongThemselves) {
  run_threads(4, [](const Group& world) {
    const auto even = world.subgroup({2, 0}, "even"), odd = world.subgroup({1, 3}, "odd");
    EXPECT_EQ(even.has_value(), world.rank() % 2 == 0);
    EXPECT_EQ(odd.has_value(), world.rank() % 2 == 1);
    const Group& own = even ? *even : *odd;
    const at::Tensor sum = own.all_reduced(at::full({1}, world.rank()));
    EXPECT_EQ(sum.item<int64_t>(), even ? 2 : 4);
    if (even) {
      EXPECT_EQ(own.rank(), world.rank() == 2 ? 0 : 1);  // in the order asked for
      EXPECT_THAT(own.world_ranks(), ElementsAre(2, 0));
    }
    const auto half = own.subgroup({1}, "half");  // the same name in groups that do not meet
    EXPECT_EQ(half.has_value(), own.rank() == 1);
    EXPECT_THAT(text_of<ValueError>([&] {
                  world.subgroup({0, 1}, "even");
                }),
                HasSubstr("\"even\" is taken"));
    world.barrier();
  });
}

TEST(GroupTest, AGroupWithoutTheRankAtFaultGoesOn) {
  run_threads(3,
              [](const Group& world) {
                const auto pair = world.subgroup({0, 1}, "pair");
                world.barrier();
                if (world.rank() == 2) return;
                EXPECT_THAT(rank_error([&] { world.all_reduce(at::ones({4})); }).ranks(),
                            ElementsAre(2));
                EXPECT_EQ(pair->all_reduced(at::ones({1})).item<double>(), 2);
                EXPECT_THAT(rank_error([&] { world.barrier(); }).ranks(), ElementsAre(2));
              },
              {.timeout = 3s});
}

TEST(GroupTest, WhoGoesBecauseOfAnotherIsNotNamed) {
  run_threads(
      4,
      [](const Group& world) {
        const auto low = world.subgroup({0, 2}, "low"), high = world.subgroup({2, 3}, "high");
        world.barrier();
        if (world.rank() == 2) {
          EXPECT_THAT(rank_error([&] { high->all_reduce(at::ones({4})); }).ranks(), ElementsAre(3));
        }
        if (world.rank() == 0) {
          EXPECT_THAT(rank_error([&] { low->all_reduce(at::ones({4})); }).ranks(), ElementsAre(3));
        }
      },
      {.timeout = 5s});
}

TEST(GroupTest, TensorsOfSimulatedDevicesGoThroughTheCpu) {
  sim::enable({.devices = 2});
  run_threads(2, [](const Group& world) {
    const c10::Device device = parse_device(world.rank() == 0 ? "sim:0" : "sim:1");
    const at::Tensor tensor = at::ones({2, 3}).to(device);
    world.all_reduce(tensor.t());
    EXPECT_TRUE(at::equal(tensor.cpu(), at::full({2, 3}, 2.0)));
    const at::Tensor all = world.all_gathered(tensor);
    EXPECT_EQ(all.device(), device);
    EXPECT_TRUE(at::equal(all.cpu(), at::full({2, 2, 3}, 2.0)));
    const at::Tensor part = at::zeros({3}).to(device);
    world.reduce_scatter_tensor(part, tensor, ReduceOp::average);
    EXPECT_TRUE(at::equal(part.cpu(), at::full({3}, 2.0)));
  });
}

TEST(GroupTest, RanksThatDisagreeAboutASubgroupAreTold) {
  run_threads(2,
              [](const Group& world) {
                const std::string text = text_of<RankError>([&] {
                  world.subgroup(
                      world.rank() == 0 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{1, 0},
                      "pair");
                });
                EXPECT_THAT(text, AnyOf(HasSubstr("it is of ranks"), HasSubstr("did not come")));
              },
              {.timeout = 500ms});
}

TEST(GroupTest, ClosingInAnyOrderTwiceOnOneAloneIsBounded) {
  run_threads(2, [](const Group& world) {
    const auto a = world.subgroup({0, 1}, "a"), b = world.subgroup({0, 1}, "b");
    a->all_reduce(at::ones({2}));
    const bool worlds_first = world.rank() == 0;
    EXPECT_LT(seconds_of([&] {
                if (worlds_first) world.close();
                a->close();
                a->close();
                world.close();
              }),
              2.0);
    EXPECT_THAT(text_of<ValueError>([&] { a->barrier(); }), HasSubstr("closed"));
  });
}

TEST(GroupTest, DroppingGroupsInEachOfSixOrders) {
  std::vector<int> order = {0, 1, 2};
  do {
    run_threads(2, [&](const Group& world) {
      std::vector<std::optional<Group>> groups;
      for (const std::string name : {"a", "b", "c"}) groups.push_back(world.subgroup({0, 1}, name));
      for (const auto& group : groups) group->all_reduce(at::ones({1}));
      for (const int i : order) groups[static_cast<size_t>(i)].reset();
    });
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(GroupTest, WhoLeavesEarlyIsNamedByAllOthers) {
  run_threads(3,
              [](const Group& world) {
                world.barrier();
                if (world.rank() == 1) return world.close();
                const auto error = rank_error([&] { world.all_reduce(at::ones({4})); });
                EXPECT_THAT(error.ranks(), ElementsAre(1)) << error.what();
                EXPECT_THAT(error.what(), AllOf(HasSubstr("all_reduce #2 of group \"world\""),
                                                HasSubstr("rank 1 has left")));
                EXPECT_LT(seconds_of([&] {
                            EXPECT_STREQ(rank_error([&] { world.barrier(); }).what(), error.what());
                            world.close();
                          }),
                          2.0);
              },
              {.timeout = 3s});
}

TEST(GroupTest, AMonitoredBarrierNamesTheSleeper) {
  run_threads(3, [](const Group& world) {
    world.barrier();
    if (world.rank() == 2) std::this_thread::sleep_for(2500ms);
    RankError error("", {});
    const double seconds =
        seconds_of([&] { error = rank_error([&] { world.monitored_barrier(1s); }); });
    EXPECT_THAT(error.ranks(), ElementsAre(2)) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("rank 2"));
    EXPECT_LT(seconds, 2.0);
    if (world.rank() == 0) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 of 3: monitored_barrier #2"),
                                      HasSubstr("rank 2 is elsewhere")));
    }
  });
}

TEST(GroupTest, ATimeOutNamesWhoIsElsewhereAndTheBucket) {
  run_threads(4,
              [](const Group& world) {
                world.barrier();
                if (world.rank() == 3) std::this_thread::sleep_for(2s);
                const Describe what("bucket 0: fc.weight", 0);
                const auto error = rank_error([&] { world.all_reduce(at::ones({4})); });
                EXPECT_THAT(error.ranks(), ElementsAre(3)) << error.what();
                if (world.rank() != 3) {
                  EXPECT_THAT(
                      error.what(),
                      AllOf(HasSubstr("(bucket 0: fc.weight) failed after"),
                            HasSubstr("rank 3 is elsewhere: its last collective was #1 (barrier"),
                            Not(HasSubstr("127.0.0.1"))));
                }
              },
              {.timeout = 1s});
}

TEST(GroupTest, CallsThatDifferAreFoundBeforeTheyMix) {
  const std::vector<std::function<void(const Group&)>> pairs[] = {
      {[](const Group& g) { g.all_reduce(at::ones({4})); },
       [](const Group& g) { g.all_reduce(at::ones({5})); }},
      {[](const Group& g) { g.all_reduce(at::ones({4})); },
       [](const Group& g) { g.all_reduce(at::ones({4}, at::kInt)); }},
      {[](const Group& g) { g.all_reduce(at::ones({4})); },
       [](const Group& g) { g.broadcast(at::ones({4})); }},
      {[](const Group& g) { g.all_reduce(at::ones({4})); },
       [](const Group& g) { g.all_reduce(at::ones({4}), ReduceOp::max); }},
      {[](const Group& g) { g.broadcast(at::ones({4}), 0); },
       [](const Group& g) { g.broadcast(at::ones({4}), 1); }}};
  for (const auto& pair : pairs) {
    run_threads(
        2,
        [&](const Group& world) {
          const auto error = rank_error([&] { pair[static_cast<size_t>(world.rank())](world); });
          EXPECT_THAT(error.what(), AllOf(HasSubstr("called"), HasSubstr("and the others")));
          EXPECT_EQ(error.ranks().size(), 1U);
        },
        {.timeout = 5s});
  }
}

TEST(GroupTest, EveryCallIsComparedOnRequest) {
  run_threads(2,
              [](const Group& world) {
                for (int i = 0; i < 600; ++i) world.all_reduce(at::ones({4}));
                world.all_reduce(at::ones({5}));
                // Both are known by now.
                const auto error =
                    rank_error([&] { world.all_reduce(at::ones({world.rank() == 0 ? 4 : 5})); });
                EXPECT_THAT(error.what(),
                            AllOf(HasSubstr("float32 [4]"), HasSubstr("float32 [5]")));
              },
              {.timeout = 5s, .check_calls = true});
}

TEST(GroupTest, TheFirstExceptionOfARankIsRethrown) {
  const double seconds = seconds_of([] {
    EXPECT_THAT(text_of<ValueError>([] {
                  run_threads(3, [](const Group& world) {
                    if (world.rank() == 1) throw ValueError("bad data row 12");
                    world.barrier();
                  });
                }),
                HasSubstr("bad data row 12"));
  });
  EXPECT_LT(seconds, 5.0);
}

TEST(GroupTest, ErrorsReachFuturesAndEveryWait) {
  run_threads(2,
              [](const Group& world) {
                if (world.rank() == 1) {
                  std::this_thread::sleep_for(1500ms);
                  return;
                }
                const Work work = world.async().all_reduce(at::ones({3}));
                const auto future = work.future();
                EXPECT_FALSE(work.done());
                EXPECT_THAT(rank_error([&] { work.wait(); }).ranks(), ElementsAre(1));
                EXPECT_THAT(rank_error([&] { work.wait(); }).ranks(), ElementsAre(1));
                EXPECT_TRUE(work.done());
                future->wait();
                EXPECT_TRUE(future->hasError());
                EXPECT_THAT(rank_error([&] { future->value(); }).ranks(), ElementsAre(1));
              },
              {.timeout = 500ms});
}

TEST(GroupTest, AMessageThatDoesNotComeNamesTheSender) {
  run_threads(3,
              [](const Group& world) {
                world.barrier();
                if (world.rank() == 0) {
                  const auto error = rank_error([&] { world.recv(at::ones({1}), 2); });
                  EXPECT_THAT(error.ranks(), ElementsAre(2)) << error.what();
                  EXPECT_THAT(error.what(), HasSubstr("recv of group"));
                } else {
                  std::this_thread::sleep_for(2s);
                }
              },
              {.timeout = 500ms});
}

TEST(GroupTest, LibtorchsProcessGroupIsTheGroup) {
  for (const int64_t ranks : {1, 2}) {
    run_threads(ranks, [ranks](const Group& world) {
      const auto group = process_group(world);
      EXPECT_EQ(group->getSize(), ranks);
      std::vector<at::Tensor> tensors = {at::ones({3})};
      group->allreduce(tensors)->wait();
      EXPECT_EQ(tensors[0][0].item<double>(), static_cast<double>(ranks));
      group->broadcast(tensors)->wait();
      std::vector<at::Tensor> inputs = {at::full({2}, world.rank())};
      std::vector<std::vector<at::Tensor>> outputs(1);
      for (int64_t i = 0; i < ranks; ++i) outputs[0].push_back(at::zeros({2}, at::kLong));
      group->allgather(outputs, inputs)->wait();
      EXPECT_EQ(outputs[0].back()[0].item<int64_t>(), ranks - 1);
      const auto future = group->allreduce(tensors)->getFuture();
      future->wait();
      EXPECT_EQ(future->value().toTensorVector()[0].numel(), 3);
      group->barrier()->wait();
    });
  }
}

}  // namespace
}  // namespace bellows::parallel
