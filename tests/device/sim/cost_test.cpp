// The cost model and its virtual clock.
#include <filesystem>
#include <fstream>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "bellows/core/error.h"
#include "bellows/device/stream.h"
#include "tests/device/sim/fixture.h"

namespace bellows {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9;

class SimCost : public SimTest {
 protected:
  SimCost() {
    sim::set_cost_model(
        {{.peak_tflops = 2, .memory_gbps = 1000, .link_gbps = 10, .latency_us = 0}});
  }
  ~SimCost() override { sim::set_cost_model({}); }

  // Simulated seconds that `work` takes on sim:0 when nothing else is there.
  template <class Fn>
  double seconds(Fn work) {
    Event start(sim0_, /*timing=*/true), end(sim0_, /*timing=*/true);
    start.record(Stream::current(sim0_));
    work();
    end.record(Stream::current(sim0_));
    end.synchronize();
    return start.elapsed_until(end).count() / 1e3;
  }

  const at::Tensor a_ = at::ones({256, 512}, sim0_);
  const at::Tensor b_ = at::ones({512, 128}, sim0_);
};

TEST_F(SimCost, AProductTakesItsArithmeticAtThePeakRate) {
  const double expected = 2.0 * 256 * 512 * 128 / (2 * kTera);
  EXPECT_NEAR(seconds([&] { at::mm(a_, b_); }), expected, 1e-12);
  EXPECT_NEAR(seconds([&] { at::mm(a_, b_), at::mm(a_, b_); }), 2 * expected, 1e-12);
}

TEST_F(SimCost, AnElementWiseOperatorTakesItsBytes) {
  EXPECT_NEAR(seconds([&] { at::relu(a_); }), 2.0 * 256 * 512 * 4 / (1000 * kGiga), 1e-12);
}

TEST_F(SimCost, ALatencyIsAddedToEachOperator) {
  const double without = seconds([&] { at::relu(a_); });
  sim::set_cost_model({{.peak_tflops = 2, .memory_gbps = 1000, .link_gbps = 10, .latency_us = 5}});
  EXPECT_NEAR(seconds([&] { at::relu(a_); }), without + 5e-6, 1e-12);
}

TEST_F(SimCost, CopiesTakeTheLink) {
  const at::Tensor host = at::ones({kMiB}, at::kByte).pin_memory();
  const at::Tensor target = at::empty({kMiB}, at::device(sim0_).dtype(at::kByte));
  EXPECT_NEAR(seconds([&] { target.copy_(host, true); }), static_cast<double>(kMiB) / (10 * kGiga),
              1e-12);
}

TEST_F(SimCost, ConvolutionsAndTheirGradientsAreCounted) {
  sim::set_cost_model(
      {{.peak_tflops = 1e-6, .memory_gbps = 1e6, .link_gbps = 10}});  // arithmetic alone
  const at::Tensor x = at::ones({2, 3, 8, 8}, sim0_).requires_grad_();
  const at::Tensor w = at::ones({4, 3, 3, 3}, sim0_).requires_grad_();
  const double forward = 2.0 * (2 * 4 * 6 * 6) * (3 * 3 * 3) / 1e6;
  at::Tensor y;
  EXPECT_NEAR(seconds([&] { y = at::conv2d(x, w); }), forward, forward * 1e-3);
  EXPECT_NEAR(seconds([&] { y.sum().backward(); }), 2 * forward, forward * 1e-2);
}

TEST_F(SimCost, ViewsAreFreeAndMemoryIsCountedOnce) {
  const double mib = static_cast<double>(kMiB) / (1000 * kGiga);
  const at::Tensor x = at::zeros({kMiB / 4}, sim0_), out = at::empty({kMiB / 4}, sim0_);
  EXPECT_EQ(seconds([&] { x.unfold(0, 2, 2), at::view_as_complex(x.view({-1, 2})); }), 0);
  EXPECT_NEAR(seconds([&] { x.fill_(1); }), mib, 1e-12);
  at::Tensor target = out;
  EXPECT_NEAR(seconds([&] { at::add_out(target, x, x); }), 2 * mib, 1e-12);
  EXPECT_NEAR(seconds([&] { at::sum(x.slice(0, 0, 1).expand({kMiB / 4})); }), 0,
              1e-6 * mib + 1e-10 + mib);
  const at::Tensor table = at::zeros({kMiB, 4}, sim0_),
                   rows = at::zeros({8}, at::device(sim0_).dtype(at::kLong));
  EXPECT_NEAR(seconds([&] { at::embedding(table, rows); }), (8 * 8 + 2 * 8 * 16) / (1000 * kGiga),
              1e-13);
}

TEST_F(SimCost, AnEventOnAnIdleStreamIsOfNow) {
  at::mm(a_, b_);
  Stream::current(sim0_).synchronize();
  const Stream side = Stream::from_pool(sim0_);
  Event start(sim0_, /*timing=*/true), end(sim0_, /*timing=*/true);
  start.record(side);
  {
    const StreamGuard on(side);
    at::mm(a_, b_);
  }
  end.record(side);
  end.synchronize();
  EXPECT_NEAR(start.elapsed_until(end).count() / 1e3, 2.0 * 256 * 512 * 128 / (2 * kTera), 1e-12);
}

TEST_F(SimCost, StreamsOverlapAndEventsCarryTheirTime) {
  const double one = seconds([&] { at::mm(a_, b_); });
  const Stream side = Stream::from_pool(sim0_);
  const double both = seconds([&] {
    at::mm(a_, b_);
    const StreamGuard on(side);
    at::mm(a_, b_);
  });
  EXPECT_NEAR(both, one, 1e-12);
  const double after = seconds([&] {
    Event done(sim0_);
    {
      Event begin(sim0_);
      begin.record(Stream::current(sim0_));
      const StreamGuard on(side);
      side.wait(begin);
      at::mm(a_, b_);
      done.record(side);
    }
    Stream::current(sim0_).wait(done);
    at::mm(a_, b_);
  });
  EXPECT_NEAR(after, 2 * one, 1e-12);
}

TEST_F(SimCost, DevicesDifferByTheirEntry) {
  sim::set_cost_model({{.peak_tflops = 2, .memory_gbps = 1e6, .link_gbps = 10},
                       {.peak_tflops = 1, .memory_gbps = 1e6, .link_gbps = 10}});
  const at::Tensor a = a_.to(sim1_), b = b_.to(sim1_);
  const auto before0 = sim::device_time(sim0_), before1 = sim::device_time(sim1_);
  at::mm(a_, b_);
  at::mm(a, b);
  const auto took0 = sim::device_time(sim0_) - std::max(before0, sim::host_time());
  const auto took1 = sim::device_time(sim1_) - std::max(before1, sim::host_time());
  EXPECT_NEAR(took1.count(), 2 * took0.count(), 1e-12);
  EXPECT_GT(took0.count(), 0);
}

TEST_F(SimCost, TheHostGoesToTheTimeOfWhatItWaitsFor) {
  at::mm(a_, b_);
  EXPECT_LT(sim::host_time(), sim::device_time(sim0_));
  Stream::current(sim0_).synchronize();
  EXPECT_EQ(sim::host_time(), sim::device_time(sim0_));
  const float sum = at::mm(a_, b_).sum().item<float>();
  EXPECT_EQ(sum, 256 * 128 * 512);
  EXPECT_EQ(sim::host_time(), sim::device_time(sim0_));
}

TEST_F(SimTest, WithoutAModelTheClockStands) {
  EXPECT_FALSE(sim::cost_model_on());
  const auto before = sim::device_time(sim0_);
  at::ones({100}, sim0_).mul(2);
  EXPECT_EQ(sim::device_time(sim0_), before);
}

class CostFile : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) {
    const auto path = std::filesystem::path(::testing::TempDir()) / "cost_model.toml";
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(CostFile, HasOneTableADevice) {
  const auto model = sim::read_cost_model(write(
      "[[device]]\npeak_tflops = 60\nmemory_gbps = 900.5\nlink_gbps = 25.0\nlatency_us = 5.0\n"
      "[[device]]\npeak_tflops = 30.0\nmemory_gbps = 450.0\nlink_gbps = 12.0\n"));
  ASSERT_EQ(model.size(), 2u);
  EXPECT_EQ(model[0].peak_tflops, 60);
  EXPECT_EQ(model[0].memory_gbps, 900.5);
  EXPECT_EQ(model[0].latency_us, 5);
  EXPECT_EQ(model[1].link_gbps, 12);
  EXPECT_EQ(model[1].latency_us, 0);
}

TEST_F(CostFile, MistakesAreNamedWithTheirPlace) {
  const std::string good = "[[device]]\npeak_tflops = 60\nmemory_gbps = 900\nlink_gbps = 25\n";
  EXPECT_SAYS(sim::read_cost_model(write(good + "latency = 3\n")), "cost_model.toml:5",
              "latency_us");
  EXPECT_SAYS(sim::read_cost_model(write(good + "latency_us = -3\n")), "cost_model.toml:5", "-3");
  EXPECT_SAYS(sim::read_cost_model(write("[[device]]\npeak_tflops = 'fast'\n")),
              "cost_model.toml:2", "expected a number");
  EXPECT_SAYS(sim::read_cost_model(
                  write("[[device]]\npeak_tflops = 0\nmemory_gbps = 900\nlink_gbps = 25\n")),
              "peak_tflops", "above 0");
  EXPECT_SAYS(sim::read_cost_model(write("[[device]]\npeak_tflops = 1\nmemory_gbps = 900\n")),
              "link_gbps is missing");
  EXPECT_SAYS(sim::read_cost_model(write("[device]\npeak_tflops = 1\n")), "cost_model.toml:1",
              "[[device]]");
  EXPECT_SAYS(sim::read_cost_model(write("")), "describes no device");
  EXPECT_SAYS(sim::read_cost_model(write("[[device")), "cost_model.toml:1");
  EXPECT_THROW(sim::read_cost_model("/nowhere/cost.toml"), FileError);
  EXPECT_THROW(sim::set_cost_model({{.peak_tflops = -1, .memory_gbps = 1, .link_gbps = 1}}),
               ValueError);
}

}  // namespace
}  // namespace bellows
