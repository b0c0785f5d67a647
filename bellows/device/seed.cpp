#include "bellows/device/seed.h"

#include <cstdlib>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/device/device.h"
#include "bellows/device/sim.h"

namespace bellows {
namespace {

struct NamedGenerator {
  std::string name;
  at::Generator generator;
};

std::vector<NamedGenerator> default_generators() {
  std::vector<NamedGenerator> out;
  const auto add = [&](c10::Device device) {
    out.push_back({device_name(device), at::globalContext().defaultGenerator(device)});
  };
  add(c10::Device(c10::kCPU));
  for (int index = 0; index < sim::device_count(); ++index) add(sim::device(index));
  const int count = at::detail::getCUDAHooks().deviceCount();
  for (int index = 0; index < count; ++index)
    add(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)));
  return out;
}

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

// Nothing is changed before all of it has been checked.
void check(const Tree& state, std::vector<NamedGenerator>& generators) {
  if (!state.is_dict())
    throw ValueError(
        concat("random state: got a ", state.kind(), ", expected a dict with cpu, cuda:0, …"));
  std::vector<std::string> wrong;
  if (!state.contains("cpu")) wrong.push_back("cpu is missing");
  for (const auto& [name, value] : state.dict()) {
    if (name != "cpu" && !name.starts_with("cuda:") && !name.starts_with("sim:"))
      wrong.push_back(name + " is unexpected");
    if (!value.is_tensor())
      wrong.push_back(concat(name, " is a ", value.kind(), ", expected a tensor"));
  }
  for (auto& [name, generator] : generators) {
    if (!state.contains(name) || !state.at(name).is_tensor()) continue;
    const at::Tensor& saved = state.at(name).tensor();
    const at::Tensor own = state_of(generator);
    if (!saved.defined() || saved.scalar_type() != at::kByte || saved.sizes() != own.sizes()) {
      wrong.push_back(concat(name, " expected ", own.numel(), " bytes (uint8)"));
    }
  }
  if (!wrong.empty()) throw ValueError("random state: " + join(wrong));
}

}  // namespace

void seed_everything(uint64_t seed) {
  at::manual_seed(seed);
}

Tree RandomState::state_dict() const {
  Tree::Dict out;
  for (auto& [name, generator] : default_generators()) out.emplace(name, state_of(generator));
  return out;
}

void RandomState::load_state_dict(const Tree& state) {
  auto generators = default_generators();
  check(state, generators);
  Tree::Dict unused = state.dict();
  for (auto& [name, generator] : generators) {
    if (!state.contains(name)) {
      log::warn("random state: nothing was saved for " + name + "; its generator is left as it is");
      continue;
    }
    const at::Tensor saved = state.at(name).tensor().cpu().contiguous();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(saved);
    unused.erase(name);
  }
  for (const auto& [name, value] : unused) {
    log::warn("random state: " + name + " was saved but is not on this machine; it is left out");
  }
}

void set_deterministic(bool on) {
  if (on) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(on);
  if (on) at::globalContext().setBenchmarkCuDNN(false);
}

bool deterministic() {
  return at::globalContext().deterministicAlgorithms();
}

}  // namespace bellows
