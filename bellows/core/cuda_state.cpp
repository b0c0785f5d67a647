#include "bellows/core/cuda_state.h"

#include <algorithm>
#include <charconv>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows {
namespace {

constexpr int kNoDevice = 100;        // CUDA_ERROR_NO_DEVICE
constexpr int kStubLibrary = 34;      // CUDA_ERROR_STUB_LIBRARY
constexpr int kDriverMismatch = 803;  // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH

std::string dotted(int driver_version) {
  return concat(driver_version / 1000, ".", driver_version % 1000 / 10);
}

int parse_number(std::string_view text, std::string_view whole) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw ValueError(concat("compute capability: got '", whole,
                            "', expected MAJOR.MINOR or MAJOR.MINOR+PTX, such as 9.0"));
  }
  return value;
}

void parse_arch(std::string_view word, std::vector<CudaArch>& out) {
  std::string_view number = word;
  const bool ptx = number.ends_with("+PTX");
  if (ptx) number.remove_suffix(4);
  const size_t point = number.find('.');
  const auto major = number.substr(0, point);
  const auto minor =
      point == std::string_view::npos ? std::string_view() : number.substr(point + 1);
  const CudaArch arch{parse_number(major, word), parse_number(minor, word), false};
  out.push_back(arch);
  if (ptx) out.push_back({arch.major, arch.minor, true});
}

CudaReport cpu_build(const CudaFacts& facts) {
  const std::string where =
      facts.libtorch_folder.empty() ? "" : concat(" in ", facts.libtorch_folder);
  std::string sentence = concat("this LibTorch is a CPU build (no libtorch_cuda.so", where, ")");
  if (!facts.driver.devices.empty())
    sentence += concat("; the machine has ", facts.driver.devices.front().name);
  return {CudaState::cpu_build, std::move(sentence),
          "install a CUDA build of the same version (`pip install torch`, or the CUDA download of "
          "LibTorch from pytorch.org) "
          "and point LIBTORCH at it"};
}

CudaReport driver_missing(const CudaDriver& driver) {
  if (!driver.hardware)
    return {CudaState::driver_missing, "no NVIDIA driver",
            "install the NVIDIA driver if this machine has such a device"};
  std::string sentence =
      "an NVIDIA device is in this machine, but its driver library libcuda.so.1 was not found";
  if (!driver.kernel_module.empty()) {
    return {CudaState::driver_missing,
            sentence + concat(" (kernel module ", driver.kernel_module, " is loaded)"),
            "in a container, start it with its devices and driver (`--gpus all`); else reinstall "
            "the driver's user-space package"};
  }
  return {CudaState::driver_missing, std::move(sentence), "install the NVIDIA driver"};
}

CudaReport driver_broken(const CudaDriver& driver) {
  const int code = *driver.init;
  std::string sentence = concat("the NVIDIA driver does not start: cuInit gave ", code);
  if (!driver.init_error.empty()) sentence += concat(" (", driver.init_error, ")");
  std::string remedy =
      "see whether `nvidia-smi` works; reload the driver's kernel module or restart the machine";
  if (code == kStubLibrary)
    remedy =
        "the libcuda.so.1 found is the toolkit's stub: take its `stubs` folder out of "
        "LD_LIBRARY_PATH";
  if (code == kDriverMismatch)
    remedy =
        "kernel module and libcuda.so.1 differ in version, as after an update: restart the machine";
  return {CudaState::driver_broken, std::move(sentence), std::move(remedy)};
}

CudaReport no_device(const CudaDriver& driver) {
  if (driver.visible_devices) {
    return {CudaState::no_device,
            concat("no CUDA device: CUDA_VISIBLE_DEVICES is '", *driver.visible_devices, "'"),
            "unset CUDA_VISIBLE_DEVICES or name devices that exist"};
  }
  return {CudaState::no_device, "the NVIDIA driver finds no device",
          "see whether `nvidia-smi -L` lists one; in a container, pass the device through"};
}

CudaReport driver_too_old(const CudaFacts& facts) {
  return {CudaState::driver_too_old,
          concat("the NVIDIA driver is too old: it runs CUDA up to ", dotted(facts.driver.version),
                 ", LibTorch was built for CUDA ", facts.cuda_major),
          concat("update the driver to one for CUDA ", facts.cuda_major,
                 ", or take a LibTorch built for CUDA ", facts.driver.version / 1000)};
}

CudaReport not_loaded(const CudaFacts& facts) {
  if (facts.too_late) {
    return {CudaState::not_loaded,
            "CUDA was loaded too late: LibTorch had already settled that there is none",
            "call bellows::init() first in main(), before any other use of LibTorch"};
  }
  if (!facts.load_error.empty()) {
    return {
        CudaState::not_loaded,
        concat("LibTorch's CUDA part is on disk but could not be loaded: ", facts.load_error),
        "install LibTorch with all its NVIDIA libraries (`pip install torch`, without --no-deps)"};
  }
  if (!facts.module_on_disk) {
    return {CudaState::not_loaded,
            "Bellows was built without its CUDA module (no libbellows_cuda.so beside it)",
            "build Bellows with -DBELLOWS_CUDA=ON"};
  }
  return {CudaState::not_loaded,
          "the CUDA library is present on disk but not loaded in this process",
          "call bellows::init() first in main(), or link the program to LibTorch::cuda"};
}

CudaReport with_devices(const CudaFacts& facts) {
  if (facts.libtorch_devices && *facts.libtorch_devices == 0) {
    return {CudaState::driver_broken,
            concat("the NVIDIA driver lists ", facts.driver.devices.size(),
                   " device(s), but LibTorch finds none"),
            "see whether `nvidia-smi` works; update the driver"};
  }
  const CudaDevice& device = facts.driver.devices.front();
  const std::string what =
      concat(device.name, ", ", human_bytes(static_cast<double>(device.memory_bytes)));
  if (facts.archs.empty()) return {CudaState::usable, what, ""};
  const ArchCheck check = check_arch(device.major, device.minor, facts.archs);
  if (check.fit == ArchCheck::Fit::unsupported) {
    return {CudaState::no_kernels, concat(device.name, ": ", check.message),
            "take a LibTorch built for that capability"};
  }
  return {CudaState::usable, what, check.message};
}

}  // namespace

std::vector<CudaArch> parse_archs(std::string_view words) {
  std::vector<CudaArch> out;
  while (true) {
    const size_t start = words.find_first_not_of(" ,;");
    if (start == std::string_view::npos) return out;
    words.remove_prefix(start);
    const size_t end = std::min(words.find_first_of(" ,;"), words.size());
    parse_arch(words.substr(0, end), out);
    words.remove_prefix(end);
  }
}

std::string to_string(std::span<const CudaArch> archs) {
  std::vector<std::string> words;
  for (const auto& arch : archs)
    words.push_back(concat(arch.major, ".", arch.minor, arch.ptx ? " (PTX)" : ""));
  return join(words);
}

ArchCheck check_arch(int major, int minor, std::span<const CudaArch> built) {
  const auto native = [&](const CudaArch& arch) {
    return !arch.ptx && arch.major == major && arch.minor <= minor;
  };
  const auto later = [&](const CudaArch& arch) {
    return arch.ptx && (arch.major < major || (arch.major == major && arch.minor <= minor));
  };
  if (std::ranges::any_of(built, native)) return {ArchCheck::Fit::native, ""};
  if (std::ranges::any_of(built, later)) {
    return {ArchCheck::Fit::just_in_time,
            concat("no kernels for compute capability ", major, ".", minor,
                   " were built: the driver compiles them from PTX, so the first start is slow "
                   "(minutes)")};
  }
  return {ArchCheck::Fit::unsupported, concat("no kernels for compute capability ", major, ".",
                                              minor, "; built for ", to_string(built))};
}

std::string_view to_string(CudaState state) {
  switch (state) {
    case CudaState::cpu_build:
      return "cpu_build";
    case CudaState::driver_missing:
      return "driver_missing";
    case CudaState::driver_broken:
      return "driver_broken";
    case CudaState::no_device:
      return "no_device";
    case CudaState::driver_too_old:
      return "driver_too_old";
    case CudaState::not_loaded:
      return "not_loaded";
    case CudaState::no_kernels:
      return "no_kernels";
    case CudaState::usable:
      return "usable";
  }
  return "unknown";
}

CudaReport cuda_state(const CudaFacts& facts) {
  const CudaDriver& driver = facts.driver;
  if (!facts.libtorch_cuda_on_disk) return cpu_build(facts);
  if (!driver.library) return driver_missing(driver);
  const int init = driver.init.value_or(0);
  if (init != 0 && init != kNoDevice) return driver_broken(driver);
  if (init == kNoDevice || driver.devices.empty()) return no_device(driver);
  if (driver.version > 0 && driver.version / 1000 < facts.cuda_major) return driver_too_old(facts);
  if (!facts.module_on_disk || !facts.loaded.value_or(true)) return not_loaded(facts);
  return with_devices(facts);
}

}  // namespace bellows
