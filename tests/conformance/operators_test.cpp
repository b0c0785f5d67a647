// The gate: each operator that the library's models, losses and optimizers use gives on a simulated
// device what it gives on the CPU: values, shapes, strides, types, what is a view of what, what is
// changed in place, and an error where devices mix. operators.txt is the list; it is compared with
// what they really use.
#include <fstream>
#include <set>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include "bellows/core/text.h"
#include "bellows/device/device.h"
#include "bellows/device/sim.h"
#include "tests/conformance/recorder.h"
#include "tests/conformance/workloads.h"

namespace bellows::conformance {
namespace {

constexpr size_t kVariants = 4;

const std::vector<Call>& calls() {
  static const std::vector<Call> recorded =
      record([] { run_all(c10::Device(c10::kCPU)); }, kVariants);
  return recorded;
}

// What cannot be called by itself, with the reason.
const std::set<std::string> kNotReplayed{
    "aten::set_data",        // needs the autograd of its caller
    "aten::_version",        // tells how often a tensor was changed, not what it is
    "aten::requires_grad_",  // leaves, not copies
    "aten::is_pinned",       // of host memory
};

// Tensors of two devices are their purpose, or they take their values from another device.
bool may_mix(const std::string& name) {
  for (const char* known :
       {"aten::copy_", "aten::_foreach_copy_", "aten::set_", "aten::_to_copy", "aten::to.",
        "aten::result_type", "aten::_has_compatible", "aten::is_same_size", "aten::resize_as_",
        "aten::expand_as", "aten::view_as", "aten::type_as", "aten::reshape_as", "aten::can_cast",
        "aten::is_set_to", "aten::broadcast_tensors"})
    if (name.starts_with(known)) return true;
  return false;
}

struct Result {
  std::vector<c10::IValue> arguments;  // after the call
  std::vector<c10::IValue> returns;
  std::string error;
};

Result run(const Call& call, std::vector<c10::IValue> arguments, c10::Device device) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      call.name.substr(0, call.name.find('.')).c_str(),
      call.name.find('.') == std::string::npos ? ""
                                               : call.name.substr(call.name.find('.') + 1).c_str());
  // An operator without tensors makes them where its argument says.
  if (tensors_of(arguments).empty()) {
    const auto index = op.schema().argumentIndexWithName("device");
    if (index) arguments[static_cast<size_t>(*index)] = device;
  }
  const at::NoGradGuard no_grad;
  at::manual_seed(7);
  Result result{arguments, std::move(arguments), ""};
  try {
    op.callBoxed(&result.returns);
  } catch (const c10::Error& error) {
    result.error = error.what_without_backtrace();
  }
  return result;
}

// For each tensor: which of the arguments it is, and of which of them it shares the memory.
std::vector<std::pair<int, int>> aliases(const std::vector<at::Tensor>& of,
                                         const std::vector<at::Tensor>& among) {
  std::vector<std::pair<int, int>> out;
  for (const at::Tensor& tensor : of) {
    int same = -1, shared = -1;
    for (size_t i = 0; i < among.size() && tensor.defined(); ++i) {
      if (!among[i].defined()) continue;
      if (same < 0 && among[i].is_same(tensor)) same = static_cast<int>(i);
      if (shared < 0 && among[i].storage().is_alias_of(tensor.storage()))
        shared = static_cast<int>(i);
    }
    out.emplace_back(same, shared);
  }
  return out;
}

void expect_same(const at::Tensor& cpu, const at::Tensor& sim, c10::Device device,
                 const std::string& what) {
  ASSERT_EQ(cpu.defined(), sim.defined()) << what;
  if (!cpu.defined()) return;
  EXPECT_EQ(sim.device(), device) << what;
  EXPECT_EQ(cpu.scalar_type(), sim.scalar_type()) << what;
  EXPECT_EQ(cpu.sizes(), sim.sizes()) << what;
  EXPECT_EQ(cpu.strides(), sim.strides()) << what;
  EXPECT_EQ(cpu.storage_offset(), sim.storage_offset()) << what;
  const at::Tensor back = sim.cpu();
  const bool equal = cpu.is_floating_point() ? at::allclose(cpu, back, 0, 0, /*equal_nan=*/true)
                                             : at::equal(cpu, back);
  EXPECT_TRUE(equal) << what << ": values differ";
}

void expect_same(const Call& call, const Result& cpu, const Result& sim, c10::Device device) {
  const auto compare = [&](const std::vector<c10::IValue>& a, const std::vector<c10::IValue>& b,
                           const char* kind) {
    const auto x = tensors_of(a), y = tensors_of(b);
    ASSERT_EQ(x.size(), y.size()) << call.name;
    for (size_t i = 0; i < x.size(); ++i)
      expect_same(x[i], y[i], device, concat(call.name, ": ", kind, ' ', i));
  };
  EXPECT_EQ(cpu.error, sim.error) << call.name;
  if (!cpu.error.empty()) return;
  compare(cpu.arguments, sim.arguments, "argument");
  compare(cpu.returns, sim.returns, "result");
  ASSERT_EQ(cpu.returns.size(), sim.returns.size()) << call.name;
  for (size_t i = 0; i < cpu.returns.size(); ++i) {
    if (cpu.returns[i].isScalar()) {
      EXPECT_EQ(cpu.returns[i], sim.returns[i]) << call.name;
    }
  }
  const auto before = tensors_of(cpu.arguments), there = tensors_of(sim.arguments);
  EXPECT_EQ(aliases(tensors_of(cpu.returns), before), aliases(tensors_of(sim.returns), there))
      << call.name << ": views";
  EXPECT_EQ(aliases(before, before), aliases(there, there))
      << call.name << ": views among arguments";
}

class Gate : public ::testing::Test {
 protected:
  Gate() {
    sim::enable({.devices = 2});
    at::globalContext().setDeterministicAlgorithms(true,
                                                   /*warn_only=*/true);  // new memory has a value
  }
  ~Gate() override { at::globalContext().setDeterministicAlgorithms(false, false); }
};

TEST_F(Gate, EveryOperatorGivesWhatTheCpuGives) {
  std::set<std::string> compared;
  const c10::Device device = sim::device(1);
  for (const Call& call : calls()) {
    if (kNotReplayed.contains(call.name)) continue;
    SCOPED_TRACE(call.name);
    const Result cpu =
        run(call, copy_to(call.arguments, c10::Device(c10::kCPU)), c10::Device(c10::kCPU));
    const Result sim = run(call, copy_to(call.arguments, device), device);
    expect_same(call, cpu, sim, device);
    compared.insert(call.name);
  }
  std::cout << compared.size() << " operators, " << calls().size() << " calls compared"
            << std::endl;
  EXPECT_GT(compared.size(), 150u);
}

TEST_F(Gate, EveryOperatorRefusesTensorsOfTwoDevices) {
  size_t refused = 0;
  for (const Call& call : calls()) {
    if (kNotReplayed.contains(call.name) || may_mix(call.name)) continue;
    std::vector<c10::IValue> arguments = copy_to(call.arguments, sim::device(0));
    // The first tensor argument stays, the last other one with dimensions goes to another device.
    int first = -1, last = -1;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!arguments[i].isTensor() || !arguments[i].toTensor().defined() ||
          arguments[i].toTensor().dim() == 0 || arguments[i].toTensor().numel() == 0)
        continue;
      if (first < 0) first = static_cast<int>(i);
      last = static_cast<int>(i);
    }
    if (first == last) continue;
    for (const c10::Device other : {c10::Device(c10::kCPU), sim::device(1)}) {
      auto mixed = arguments;
      mixed[static_cast<size_t>(last)] =
          copy_to({call.arguments[static_cast<size_t>(last)]}, other)[0];
      const Result result = run(call, mixed, sim::device(0));
      EXPECT_NE(result.error, "") << call.name << " took argument " << last << " on another device";
      for (const c10::Device device : {sim::device(0), other})  // by our name, or by LibTorch's
        EXPECT_TRUE(result.error.find(device_name(device)) != std::string::npos ||
                    result.error.find(device.str()) != std::string::npos)
            << call.name << ": " << result.error;
      ++refused;
    }
  }
  EXPECT_GT(refused, 100u);
}

TEST_F(Gate, TheListIsWhatTheyUse) {
  if (TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR != 14)
    GTEST_SKIP() << "operators.txt is what LibTorch 2.14 uses; this is " << TORCH_VERSION;
  std::set<std::string> used, listed;
  for (const Call& call : calls()) used.insert(call.name);
  std::ifstream file(TEST_OPERATORS);
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') listed.insert(line);
  for (const auto& name : used)
    EXPECT_TRUE(listed.contains(name)) << "not in operators.txt: " << name;
  for (const auto& name : listed)
    EXPECT_TRUE(used.contains(name)) << "in operators.txt, but not used: " << name;
}

}  // namespace
}  // namespace bellows::conformance
