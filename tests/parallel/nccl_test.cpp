// What of the NCCL back-end works without a GPU: its absence, the check of devices, and which way
// tensors go.
#include "bellows/parallel/nccl.h"

#include <gmock/gmock.h>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/device/sim.h"
#include "bellows/parallel/by_device.h"
#include "bellows/parallel/init.h"
#include "tests/support/message_of.h"

namespace bellows::parallel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

// Says what it was asked for.
class Scribe : public Transport {
 public:
  Scribe(std::string name, c10::DeviceType type, std::vector<std::string>& log)
      : name_(std::move(name)), type_(type), log_(log) {}
  void broadcast(const at::Tensor&, int64_t, Done done) override { note("broadcast", done); }
  void all_reduce(const at::Tensor&, ReduceOp, Done done) override { note("all_reduce", done); }
  void reduce(const at::Tensor&, int64_t, ReduceOp, Done done) override { note("reduce", done); }
  void all_gather(const Tensors&, const at::Tensor&, Done done) override {
    note("all_gather", done);
  }
  void gather(const Tensors&, const at::Tensor&, int64_t, Done done) override {
    note("gather", done);
  }
  void scatter(const at::Tensor&, const Tensors&, int64_t, Done done) override {
    note("scatter", done);
  }
  void all_to_all(const at::Tensor&, const at::Tensor&, const std::vector<int64_t>&,
                  const std::vector<int64_t>&, Done done) override {
    note("all_to_all", done);
  }
  void barrier(Done done) override { note("barrier", done); }
  std::shared_ptr<Message> send(const at::Tensor&, int64_t, int) override {
    note("send", [](auto) {});
    return nullptr;
  }
  std::shared_ptr<Message> receive(const at::Tensor&, int64_t, int) override {
    note("receive", [](auto) {});
    return nullptr;
  }
  bool takes(c10::Device device) const override { return device.type() == type_; }
  void abort() override {
    note("abort", [](auto) {});
  }

 private:
  void note(const std::string& what, const Done& done) {
    log_.push_back(name_ + " " + what);
    done(nullptr);
  }
  std::string name_;
  c10::DeviceType type_;
  std::vector<std::string>& log_;
};

TEST(NcclTest, TensorsOfTheDeviceGoItsWayAllOthersTheHosts) {
  std::vector<std::string> log;
  const auto both = transport_by_device(std::make_unique<Scribe>("host", c10::kCPU, log),
                                        std::make_unique<Scribe>("device", c10::kMeta, log));
  const at::Tensor host = at::empty({2}), device = at::empty({2}, at::kMeta);
  int done = 0;
  const auto count = [&](const std::exception_ptr&) { ++done; };
  for (const at::Tensor& tensor : {host, device}) {
    both->broadcast(tensor, 0, count);
    both->all_reduce(tensor, ReduceOp::sum, count);
    both->reduce(tensor, 0, ReduceOp::sum, count);
    both->all_gather({tensor}, tensor, count);
    both->gather({}, tensor, 0, count);
    both->scatter(tensor, {}, 0, count);
    both->all_to_all(tensor, tensor, {}, {}, count);
    both->send(tensor, 1, 0);
    both->receive(tensor, 1, 0);
  }
  std::vector<std::string> expected;
  for (const std::string where : {"host ", "device "}) {
    for (const std::string what : {"broadcast", "all_reduce", "reduce", "all_gather", "gather",
                                   "scatter", "all_to_all", "send", "receive"}) {
      expected.push_back(where + what);
    }
  }
  EXPECT_EQ(log, expected);
  EXPECT_EQ(done, 14);
  log.clear();
  both->barrier(count);
  both->abort();
  EXPECT_THAT(log, ElementsAre("host barrier", "device abort", "host abort"));
  EXPECT_TRUE(both->takes(c10::kCPU));
  EXPECT_TRUE(both->takes(c10::kMeta));
  EXPECT_FALSE(both->takes(c10::Device(c10::kCUDA, 0)));
}

TEST(NcclTest, TwoRanksOnOneDeviceAreNamedWithIt) {
  check_own_devices({"a PCI 0000:1b:00.0", "a PCI 0000:1c:00.0", "b PCI 0000:1b:00.0"});
  EXPECT_THAT(
      message_of<EnvironmentError>([] {
        check_own_devices({"a PCI 0000:1b:00.0", "b PCI 0000:1b:00.0", "a PCI 0000:1b:00.0"});
      }),
      AllOf(HasSubstr("ranks 0 and 2"), HasSubstr("a PCI 0000:1b:00.0"), HasSubstr("LOCAL_RANK")));
}

TEST(NcclTest, ItsAbsenceHasAReasonAndARemedy) {
  const std::string why = why_no_nccl();
  if (why.empty()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(backends(), std::vector<std::string>{"gloo"});
  EXPECT_THAT(message_of<ValueError>([] {
                init(Place{.world_size = 2, .local_world_size = 2, .master_port = 1},
                     {.backend = "nccl"});
              }),
              AllOf(HasSubstr("'nccl' is not there"), HasSubstr(why), HasSubstr("Gloo takes")));
  const auto store = memory_store(std::chrono::seconds(1));
  EXPECT_THAT(message_of<EnvironmentError>([&] {
                nccl_transport({*store, 0, 2, c10::Device(c10::kCUDA, 0), std::chrono::seconds(1)});
              }),
              HasSubstr(why));
}

}  // namespace
}  // namespace bellows::parallel
