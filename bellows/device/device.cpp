#include "bellows/device/device.h"

#include <charconv>
#include <fstream>
#include <unistd.h>

#include "bellows/core/cuda_driver.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/device/cuda_loader.h"
#include "bellows/device/select.h"
#include "bellows/device/sim.h"

namespace bellows {
namespace {

constexpr auto kSimulated = c10::DeviceType::HPU;
constexpr int kMaxDevices = 128;  // a device index of LibTorch is one signed byte

[[noreturn]] void reject(const std::string& text, const std::string& kind) {
  const std::vector<std::string> kinds{"cpu", "cuda", "sim"};
  const std::string near = kind.empty() ? "" : nearest(kind, kinds);
  throw ValueError(concat("device: got '", text,
                          "', expected cpu, cuda, cuda:N or sim:N (N from 0 to ", kMaxDevices - 1,
                          ")", near.empty() || near == kind ? "" : "; did you mean " + near + "?"));
}

int parse_index(const std::string& digits) {
  int index = -1;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, index);
  return error == std::errc() && stop == end && index < kMaxDevices ? index : -1;
}

// "cpu (no NVIDIA driver)"
DeviceChoice chosen(c10::Device device, const std::string& why) {
  return {device, concat(device_name(device), " (", why, ")")};
}

[[noreturn]] void unusable(const std::string& device, const CudaReport& report) {
  throw EnvironmentError(concat(device, " cannot be used: ", report.sentence, "; ", report.remedy,
                                ", or run on the CPU with --device cpu"));
}

Selection select_auto(const CudaReport& report, const CudaDriver& driver) {
  const DeviceChoice cpu = chosen(c10::Device(c10::kCPU), report.sentence);
  const std::string left_idle =
      concat("running on the CPU: ", report.sentence, "; ", report.remedy);
  switch (report.state) {
    case CudaState::usable:
      return {chosen(c10::Device(c10::kCUDA, 0), report.sentence), report.remedy};
    case CudaState::driver_missing:
      return {cpu, driver.hardware ? left_idle : ""};
    case CudaState::no_device:
      return {cpu, ""};
    case CudaState::cpu_build:
      return {cpu, driver.devices.empty() ? "" : left_idle};
    case CudaState::not_loaded:
      return {cpu, left_idle};
    case CudaState::driver_broken:
    case CudaState::driver_too_old:
    case CudaState::no_kernels:
      break;
  }
  unusable("the CUDA device", report);
}

DeviceChoice simulated(int index) {
  const c10::Device device = sim::device(index);
  return chosen(device,
                concat("simulated, ", human_bytes(static_cast<double>(sim::memory_limit()))));
}

int64_t host_memory() {
  return int64_t{::sysconf(_SC_PHYS_PAGES)} * int64_t{::sysconf(_SC_PAGESIZE)};
}

std::string host_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

}  // namespace

c10::Device parse_device(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const int index = colon == std::string::npos ? 0 : parse_index(text.substr(colon + 1));
  if (kind == "cpu" && index == 0) return c10::Device(c10::kCPU);
  if (kind == "cuda" && index >= 0)
    return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  if (kind == "sim" && index >= 0)
    return c10::Device(kSimulated, static_cast<c10::DeviceIndex>(index));
  reject(text, kind);
}

std::string device_name(c10::Device device) {
  if (device.type() != kSimulated) return device.str();
  return device.has_index() ? concat("sim:", int{device.index()}) : "sim";
}

Selection select_device(const std::string& text, const CudaReport& report,
                        const CudaDriver& driver) {
  if (text == "auto") return select_auto(report, driver);
  const c10::Device device = parse_device(text);
  if (device.is_cpu()) return {chosen(device, "asked for"), ""};
  if (!report.usable()) unusable(device.str(), report);
  const auto index = static_cast<size_t>(device.index());
  if (index >= driver.devices.size()) {
    throw EnvironmentError(concat(device.str(), ": this machine has ", driver.devices.size(),
                                  " CUDA device(s), expected an index from 0 to ",
                                  driver.devices.size() - 1));
  }
  const CudaDevice& found = driver.devices[index];
  return {chosen(device,
                 concat(found.name, ", ", human_bytes(static_cast<double>(found.memory_bytes)))),
          report.remedy};
}

DeviceChoice pick_device(const std::string& text) {
  const c10::Device device = text == "auto" ? c10::Device(c10::kCUDA) : parse_device(text);
  if (device.is_cpu()) return select_device(text, {}, {}).choice;
  if (device.type() == kSimulated) return simulated(device.index());
  if (sim::enabled()) {
    if (text == "auto") return simulated(0);
    throw EnvironmentError(
        concat(text,
               " cannot be used: simulated devices are switched on, and CUDA is not used next to "
               "them; unset "
               "BELLOWS_SIM_DEVICES, or run on one of them with --device sim:0"));
  }
  const CudaFacts facts = gather_cuda_facts();
  Selection selection = select_device(text, cuda_state(facts), facts.driver);
  if (!selection.warning.empty()) log::warn_once(selection.warning);
  return std::move(selection.choice);
}

CudaReport cuda_report() {
  return cuda_state(gather_cuda_facts());
}

std::vector<DeviceInfo> list_devices() {
  std::vector<DeviceInfo> out{{c10::Device(c10::kCPU), host_name(), host_memory(), ""}};
  for (int index = 0; index < sim::device_count(); ++index)
    out.push_back({sim::device(index), "simulated", sim::memory_limit(), ""});
  const CudaFacts facts = gather_cuda_facts();
  if (sim::enabled() || !cuda_state(facts).usable()) return out;
  for (size_t index = 0; index < facts.driver.devices.size(); ++index) {
    const CudaDevice& device = facts.driver.devices[index];
    out.push_back({c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)), device.name,
                   static_cast<int64_t>(device.memory_bytes),
                   concat(device.major, ".", device.minor)});
  }
  return out;
}

}  // namespace bellows
