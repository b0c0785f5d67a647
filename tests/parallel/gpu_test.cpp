// NCCL on a machine with a device: a transport of one rank, which is all that one device can hold.
#include <future>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/device/device.h"
#include "bellows/parallel/nccl.h"

namespace bellows::parallel {
namespace {

using namespace std::chrono_literals;

class NcclGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const CudaReport report = cuda_report();
    if (!report.usable()) GTEST_SKIP() << report.sentence;
    ASSERT_EQ(why_no_nccl(), "");
    transport_ = nccl_transport({*store_, 0, 1, device_, 10s});
  }
  /// Runs one operation to its end.
  void run(const std::function<void(Transport&, Transport::Done)>& start) {
    std::promise<std::exception_ptr> ended;
    start(*transport_, [&](const std::exception_ptr& error) { ended.set_value(error); });
    auto outcome = ended.get_future();
    ASSERT_EQ(outcome.wait_for(20s), std::future_status::ready);
    EXPECT_EQ(outcome.get(), nullptr);
  }

  const c10::Device device_{c10::kCUDA, 0};
  const std::shared_ptr<Store> store_ = memory_store(10s);
  std::unique_ptr<Transport> transport_;
};

TEST_F(NcclGpuTest, EachCollectiveEnds) {
  const at::Tensor values = at::arange(8, at::TensorOptions(device_).dtype(at::kFloat));
  const at::Tensor out = at::zeros({8}, values.options());
  run([&](Transport& t, auto done) { t.all_reduce(values, ReduceOp::sum, done); });
  run([&](Transport& t, auto done) { t.broadcast(values, 0, done); });
  run([&](Transport& t, auto done) { t.reduce(values, 0, ReduceOp::max, done); });
  run([&](Transport& t, auto done) { t.all_gather({out}, values, done); });
  EXPECT_TRUE(at::equal(out, values));
  out.zero_();
  run([&](Transport& t, auto done) { t.gather({out}, values, 0, done); });
  EXPECT_TRUE(at::equal(out, values));
  out.zero_();
  run([&](Transport& t, auto done) { t.scatter(out, {values}, 0, done); });
  EXPECT_TRUE(at::equal(out, values));
  out.zero_();
  run([&](Transport& t, auto done) { t.all_to_all(out, values, {8}, {8}, done); });
  EXPECT_TRUE(at::equal(out, values));
  run([&](Transport& t, auto done) { t.barrier(done); });
}

TEST_F(NcclGpuTest, WhatNcclCannotDoIsRefusedByName) {
  const at::Tensor bits = at::full({2}, 3, at::TensorOptions(device_).dtype(at::kInt));
  EXPECT_THROW(transport_->all_reduce(bits, ReduceOp::bit_xor, [](auto) {}), ValueError);
  EXPECT_THROW(transport_->receive(bits, -1, 0), ValueError);
}

TEST_F(NcclGpuTest, ADeviceIsKnownByItsPlaceInTheMachine) {
  EXPECT_NE(device_identity(device_).find("PCI 0"), std::string::npos);
}

}  // namespace
}  // namespace bellows::parallel
