// A libcuda.so.1 that answers as told: put its folder first in LD_LIBRARY_PATH. Environment:
//   STUB_CUDA_INIT        what cuInit returns (0); 100 by itself where there is no device
//   STUB_CUDA_VERSION     what cuDriverGetVersion gives (13000 for CUDA 13.0)
//   STUB_CUDA_DEVICES     how many devices (1); an empty CUDA_VISIBLE_DEVICES hides them all
//   STUB_CUDA_NAME        their name (Stub GPU)
//   STUB_CUDA_MEMORY      their memory in bytes (16 GiB)
//   STUB_CUDA_CAPABILITY  their compute capability (9.0)
// Enough for probe_cuda_driver(); the CUDA runtime finds that functions are missing and sees no
// device.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;

std::string setting(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : value;
}

long long number(const char* name, const char* fallback) {
  return std::atoll(setting(name, fallback).c_str());
}

int device_count() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible != nullptr && visible[0] == '\0') return 0;
  return static_cast<int>(number("STUB_CUDA_DEVICES", "1"));
}

int capability(int part) {
  int parts[2] = {0, 0};
  std::sscanf(setting("STUB_CUDA_CAPABILITY", "9.0").c_str(), "%d.%d", &parts[0], &parts[1]);
  return parts[part];
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  const auto told = static_cast<int>(number("STUB_CUDA_INIT", "0"));
  return told == 0 && device_count() == 0 ? kNoDevice : told;
}

int cuDriverGetVersion(int* version) {
  *version = static_cast<int>(number("STUB_CUDA_VERSION", "13000"));
  return 0;
}

int cuGetErrorName(int code, const char** name) {
  switch (code) {
    case 34:
      *name = "CUDA_ERROR_STUB_LIBRARY";
      return 0;
    case 100:
      *name = "CUDA_ERROR_NO_DEVICE";
      return 0;
    case 803:
      *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
      return 0;
    case 999:
      *name = "CUDA_ERROR_UNKNOWN";
      return 0;
    default:
      *name = nullptr;
      return kInvalidValue;
  }
}

int cuDeviceGetCount(int* count) {
  *count = device_count();
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < device_count() ? 0 : kInvalidDevice;
}

int cuDeviceGetName(char* name, int length, int) {
  std::snprintf(name, static_cast<size_t>(length), "%s",
                setting("STUB_CUDA_NAME", "Stub GPU").c_str());
  return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = static_cast<size_t>(number("STUB_CUDA_MEMORY", "17179869184"));
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  if (attribute != 75 && attribute != 76) return kInvalidValue;
  *value = capability(attribute - 75);
  return 0;
}
}
