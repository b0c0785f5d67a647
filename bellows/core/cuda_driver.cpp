#include "bellows/core/cuda_driver.h"

#include <cctype>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace bellows {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr int kCapabilityMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kCapabilityMinor = 76;

// The driver's functions by name; calling one that the library lacks gives CUDA_ERROR_NOT_FOUND.
class Library {
 public:
  explicit Library(void* handle) : handle_(handle) {}

  template <class... Args>
  int call(const char* name, Args... args) const {
    constexpr int kNotFound = 500;
    auto* function = reinterpret_cast<int (*)(Args...)>(::dlsym(handle_, name));
    return function == nullptr ? kNotFound : function(args...);
  }

 private:
  void* handle_;
};

std::string first_line(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// "NVRM version: NVIDIA UNIX … Kernel Module  580.65.06  Release Build …" -> "580.65.06"
std::string kernel_module_version() {
  std::istringstream words(first_line("/proc/driver/nvidia/version"));
  for (std::string word; words >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos)
      return word;
  }
  return "";
}

bool on_pci_bus() {
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator("/sys/bus/pci/devices", error)) {
    const std::string device_class =
        first_line(device.path() / "class");  // 0x03 display, 0x12 accelerator
    const bool computes = device_class.starts_with("0x03") || device_class.starts_with("0x12");
    if (computes && first_line(device.path() / "vendor") == "0x10de") return true;
  }
  return false;
}

CudaDevice describe(const Library& driver, int index) {
  CudaDevice out;
  int device = 0;
  if (driver.call("cuDeviceGet", &device, index) != 0) return out;
  char name[256] = {};
  if (driver.call("cuDeviceGetName", &name[0], int{sizeof(name) - 1}, device) == 0) out.name = name;
  size_t bytes = 0;
  if (driver.call("cuDeviceTotalMem_v2", &bytes, device) == 0) out.memory_bytes = bytes;
  driver.call("cuDeviceGetAttribute", &out.major, kCapabilityMajor, device);
  driver.call("cuDeviceGetAttribute", &out.minor, kCapabilityMinor, device);
  char address[32] = {};
  if (driver.call("cuDeviceGetPCIBusId", &address[0], int{sizeof(address) - 1}, device) == 0) {
    for (const char c : std::string(address)) {
      out.pci_address += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

void ask(const Library& driver, CudaDriver& out) {
  driver.call("cuDriverGetVersion", &out.version);
  out.init = driver.call("cuInit", 0U);
  if (*out.init != 0) {
    const char* name = nullptr;
    if (driver.call("cuGetErrorName", *out.init, &name) == 0 && name != nullptr)
      out.init_error = name;
    return;
  }
  int count = 0;
  if (driver.call("cuDeviceGetCount", &count) != 0) return;
  for (int index = 0; index < count; ++index) out.devices.push_back(describe(driver, index));
}

}  // namespace

bool cuda_driver_present() {
  return ::dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL) != nullptr;
}

CudaDriver probe_cuda_driver() {
  CudaDriver out;
  out.kernel_module = kernel_module_version();
  out.hardware = !out.kernel_module.empty() || on_pci_bus();
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) out.visible_devices = visible;
  // Never closed: the driver does not survive being unloaded.
  if (void* handle = ::dlopen(kLibrary, RTLD_LAZY | RTLD_LOCAL)) {
    out.library = true;
    ask(Library(handle), out);
  } else if (const char* reason = ::dlerror()) {
    out.library_error = reason;
  }
  return out;
}

}  // namespace bellows
