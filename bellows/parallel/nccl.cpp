#include "bellows/parallel/nccl.h"

#include <array>
#include <unistd.h>
#include <unordered_map>

#include <ATen/detail/CUDAHooksInterface.h>

#include "bellows/core/cuda_state.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/cuda_loader.h"
#include "bellows/device/cuda_module.h"
#include "bellows/device/device.h"

namespace bellows::parallel {

std::string why_no_nccl() {
  if (cuda_module() == nullptr) {
    const CudaReport report = cuda_report();
    return report.usable() ? "bellows::init() has not been called" : report.sentence;
  }
  if (cuda_module_symbol("bellows_nccl_transport") == nullptr) {
    return "the CUDA module was built against a LibTorch without NCCL";
  }
  return {};
}

int64_t cuda_device_count() {
  return cuda_module() == nullptr ? 0 : at::detail::getCUDAHooks().deviceCount();
}

std::unique_ptr<Transport> nccl_transport(const NcclArguments& arguments) {
  if (const std::string why = why_no_nccl(); !why.empty()) {
    throw EnvironmentError("NCCL cannot be used: " + why);
  }
  auto* make = reinterpret_cast<decltype(&bellows_nccl_transport)>(
      cuda_module_symbol("bellows_nccl_transport"));
  return std::unique_ptr<Transport>(make(arguments));
}

void check_own_devices(const std::vector<std::string>& devices) {
  std::unordered_map<std::string, size_t> first;
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    const auto [found, is_new] = first.emplace(devices[rank], rank);
    if (is_new) continue;
    throw EnvironmentError(
        concat("ranks ", found->second, " and ", rank, " have one device, ", devices[rank],
               ", and NCCL needs one for each: give each rank the device of its LOCAL_RANK, start "
               "fewer ranks, or take the back-end gloo"));
  }
}

std::string device_identity(c10::Device device) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::array<char, 32> address{};
  auto* ask = reinterpret_cast<decltype(&bellows_cuda_pci_address)>(
      cuda_module_symbol("bellows_cuda_pci_address"));
  if (ask != nullptr) ask(device.index(), address.data());
  return concat(host.data(), " PCI ", address.data());
}

}  // namespace bellows::parallel
