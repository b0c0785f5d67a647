#include "bellows/device/stream.h"

#include <chrono>
#include <thread>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "bellows/device/memory.h"
#include "tests/device/sim/fixture.h"

namespace bellows {
namespace {

constexpr int64_t kSize = 1000;
constexpr int kTimes = 20;

class SimStream : public SimTest {
 protected:
  at::Tensor pinned(double value) { return at::full({kSize}, value).pin_memory(); }

  // Copies 1 over 0 on a stream of its own; what the current stream then sees, with a wait for it
  // or without.
  double seen(bool wait) {
    const at::Tensor host = pinned(1);
    const at::Tensor x = at::zeros({kSize}, sim0_);
    const Stream side = Stream::from_pool(sim0_);
    Event copied(sim0_);
    {
      const StreamGuard on(side);
      x.copy_(host, /*non_blocking=*/true);
      copied.record(side);
    }
    if (wait) Stream::current(sim0_).wait(copied);
    const double sum = x.sum().item<double>();
    synchronize(sim0_);
    return sum;
  }
};

TEST_F(SimStream, AForgottenWaitShowsEveryTime) {
  for (int i = 0; i < kTimes; ++i) EXPECT_EQ(seen(/*wait=*/false), 0);
}

TEST_F(SimStream, AWaitMakesItRightEveryTime) {
  for (int i = 0; i < kTimes; ++i) EXPECT_EQ(seen(/*wait=*/true), kSize);
}

TEST_F(SimStream, AForgottenWaitForACopyBackShowsOnTheHost) {
  for (int i = 0; i < kTimes; ++i) {
    const at::Tensor host = pinned(0);
    const at::Tensor x = at::ones({kSize}, sim0_);
    host.copy_(x, /*non_blocking=*/true);
    EXPECT_EQ(host.sum().item<double>(), 0);
    Stream::current(sim0_).synchronize();
    EXPECT_EQ(host.sum().item<double>(), kSize);
  }
}

TEST_F(SimStream, AForgottenWaitForACopyWithinADeviceShows) {
  for (int i = 0; i < kTimes; ++i) {
    const at::Tensor from = at::ones({kSize}, sim0_);
    const at::Tensor to = at::zeros({kSize}, sim0_);
    const Stream side = Stream::from_pool(sim0_);
    {
      const StreamGuard on(side);
      to.copy_(from);
    }
    EXPECT_EQ(to.sum().item<double>(), 0);
    side.synchronize();
    EXPECT_EQ(to.sum().item<double>(), kSize);
  }
}

TEST_F(SimStream, WorkOnOneStreamKeepsItsOrder) {
  const at::Tensor host = pinned(1);
  const at::Tensor x = at::zeros({kSize}, sim0_);
  x.copy_(host, /*non_blocking=*/true);
  x.add_(1);  // after the copy
  EXPECT_EQ(x.sum().item<double>(), 2 * kSize);
}

TEST_F(SimStream, ACopyFromPageableMemoryIsDoneWhenTheCallReturns) {
  at::Tensor host = at::ones({kSize});
  const at::Tensor x = at::zeros({kSize}, sim0_);
  x.copy_(host, /*non_blocking=*/true);
  host.fill_(7);
  EXPECT_EQ(x.sum().item<double>(), kSize);
}

TEST_F(SimStream, APinnedTensorMayBeDroppedBeforeItsCopyRuns) {
  const at::Tensor x = at::zeros({kSize}, sim0_);
  x.copy_(pinned(1), /*non_blocking=*/true);
  const at::Tensor other = pinned(5);  // would land in the same memory
  EXPECT_EQ(x.sum().item<double>(), kSize);
}

TEST_F(SimStream, ACopyIsOfTheTensorsAsTheyWereAtTheCall) {
  at::Tensor host = at::arange(kSize, at::kFloat).pin_memory();
  const at::Tensor x = at::zeros({kSize}, sim0_);
  x.copy_(host, /*non_blocking=*/true);
  host.resize_({1});
  EXPECT_TRUE(at::equal(x.cpu(), at::arange(kSize, at::kFloat)));
  at::Tensor grown = at::empty({kSize}, at::TensorOptions().pinned_memory(true));
  grown.copy_(at::arange(kSize, at::kFloat));
  x.zero_();
  x.copy_(grown, /*non_blocking=*/true);
  grown.resize_({100 * kSize});  // other memory
  EXPECT_TRUE(at::equal(x.cpu(), at::arange(kSize, at::kFloat)));
  at::Tensor target = at::zeros({20, 50}).pin_memory();
  const at::Tensor same = target.view({20, 50});
  target.copy_(x.view({20, 50}), /*non_blocking=*/true);
  target.t_();
  synchronize(sim0_);
  EXPECT_TRUE(at::equal(same, at::arange(kSize, at::kFloat).view({20, 50})));
}

TEST_F(SimStream, ACopyThatNobodyWaitsForRunsInTheEnd) {
  const at::Tensor host = pinned(1);
  const at::Tensor x = at::zeros({kSize}, sim0_);
  const Stream side = Stream::from_pool(sim0_);
  {
    const StreamGuard on(side);
    x.copy_(host, /*non_blocking=*/true);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!side.query() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(side.query());
  EXPECT_EQ(x.sum().item<double>(), kSize);
}

TEST_F(SimStream, AnEventIsReachedWithTheWorkBeforeIt) {
  const at::Tensor host = pinned(1);
  const at::Tensor x = at::zeros({kSize}, sim0_);
  const Stream side = Stream::from_pool(sim0_);
  Event before(sim0_, /*timing=*/true), after(sim0_, /*timing=*/true);
  before.record(side);
  {
    const StreamGuard on(side);
    x.copy_(host, /*non_blocking=*/true);
  }
  after.record(side);
  EXPECT_TRUE(before.query());
  EXPECT_FALSE(after.query());
  EXPECT_FALSE(side.query());
  after.synchronize();
  EXPECT_TRUE(side.query());
  EXPECT_GE(before.elapsed_until(after).count(), 0);
  EXPECT_EQ(x.sum().item<double>(), kSize);
}

TEST_F(SimStream, WaitsReachThroughSeveralStreams) {
  const at::Tensor host = pinned(3);
  const at::Tensor a = at::zeros({kSize}, sim0_), b = at::zeros({kSize}, sim0_);
  const Stream first = Stream::from_pool(sim0_), second = Stream::from_pool(sim0_);
  Event copied(sim0_), moved(sim0_);
  {
    const StreamGuard on(first);
    a.copy_(host, /*non_blocking=*/true);
    copied.record(first);
  }
  {
    const StreamGuard on(second);
    second.wait(copied);
    b.copy_(a);
    moved.record(second);
  }
  Stream::current(sim0_).wait(moved);
  EXPECT_EQ(b.sum().item<double>(), 3 * kSize);
}

TEST_F(SimStream, SynchronizeWaitsForAllStreamsOfTheDevice) {
  const at::Tensor host = pinned(1);
  const at::Tensor x = at::zeros({kSize}, sim0_);
  {
    const StreamGuard on(Stream::from_pool(sim0_));
    x.copy_(host, /*non_blocking=*/true);
  }
  synchronize(sim0_);
  EXPECT_EQ(x.sum().item<double>(), kSize);
}

TEST_F(SimStream, ACopyBetweenDevicesWaitsForBothAndBothForIt) {
  const at::Tensor host = pinned(2);
  const at::Tensor a = at::zeros({kSize}, sim0_), b = at::zeros({kSize}, sim1_);
  a.copy_(host, /*non_blocking=*/true);
  b.copy_(a, /*non_blocking=*/true);
  b.add_(1);
  a.zero_();
  EXPECT_EQ(b.sum().item<double>(), 3 * kSize);
}

TEST_F(SimStream, EachThreadHasItsOwnCurrentStreamAndDevice) {
  const StreamGuard on(Stream::from_pool(sim1_));
  std::thread([&] {
    EXPECT_EQ(Stream::current(sim1_), Stream::default_of(sim1_));
    EXPECT_EQ(at::zeros({1}, at::device(c10::Device(sim0_.type()))).device(), sim0_);
  }).join();
  EXPECT_FALSE(Stream::current(sim1_) == Stream::default_of(sim1_));
  EXPECT_EQ(at::zeros({1}, at::device(c10::Device(sim0_.type()))).device(), sim1_);
}

TEST_F(SimStream, StreamsThatWaitForEachOtherInTurnAreRunByManyThreads) {
  const at::Tensor host = pinned(1);
  const Stream first = Stream::from_pool(sim0_), second = Stream::from_pool(sim1_);
  for (int round = 0; round < 20; ++round) {
    const at::Tensor x = at::zeros({kSize}, sim0_), y = at::zeros({kSize}, sim1_);
    for (int i = 0; i < 10; ++i) {
      Event a(sim0_), b(sim1_);
      {
        const StreamGuard on(first);
        x.copy_(host, /*non_blocking=*/true);
        a.record(first);
      }
      second.wait(a);
      {
        const StreamGuard on(second);
        y.copy_(host, /*non_blocking=*/true);
        b.record(second);
      }
      first.wait(b);
    }
    std::thread other([&] { first.synchronize(); });
    second.synchronize();
    other.join();
    EXPECT_EQ(x.sum().item<double>() + y.sum().item<double>(), 2 * kSize);
  }
}

TEST_F(SimStream, ManyThreadsMayWaitForOneAnother) {
  const at::Tensor host = pinned(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const at::Tensor x = at::zeros({kSize}, sim0_);
        const Stream side = Stream::from_pool(sim0_);
        Stream::current(sim0_).synchronize();
        Event copied(sim0_);
        {
          const StreamGuard on(side);
          x.copy_(host, /*non_blocking=*/true);
          copied.record(side);
        }
        Stream::current(sim0_).wait(copied);
        EXPECT_EQ(x.sum().item<double>(), kSize);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace bellows
