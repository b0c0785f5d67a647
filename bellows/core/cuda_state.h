// One answer to "can I use CUDA, and if not, why": facts in, one state with one sentence and one
// remedy out.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/core/cuda_driver.h"

namespace bellows {

/// Kernels compiled for one compute capability, or (ptx) code the driver can compile for it or a
/// later one.
struct CudaArch {
  int major = 0;
  int minor = 0;
  bool ptx = false;
  bool operator==(const CudaArch&) const = default;
};

/// "8.0", "9.0+PTX" (which stands for kernels and PTX: two entries). Throws ValueError.
std::vector<CudaArch> parse_archs(std::string_view words);
std::string to_string(std::span<const CudaArch> archs);

struct ArchCheck {
  enum class Fit { native, just_in_time, unsupported };
  Fit fit = Fit::unsupported;
  /// Empty for native; else a whole sentence: the slow first start, or the list of what was built.
  std::string message;
};

/// Whether code built for `built` runs on a device of capability major.minor: kernels run on the
/// same major and an equal or later minor, PTX on any equal or later capability, at the price of
/// compiling at the first start.
ArchCheck check_arch(int major, int minor, std::span<const CudaArch> built);

/// In order of precedence: the first that holds is the state.
enum class CudaState {
  cpu_build,  // LibTorch has no CUDA library, whatever else the machine has
  driver_missing,
  driver_broken,
  no_device,
  driver_too_old,
  not_loaded,  // all is there, but LibTorch's CUDA library or Bellows' CUDA module is not in this
               // process
  no_kernels,  // no code for the first device's compute capability
  usable,
};
std::string_view to_string(CudaState state);

struct CudaFacts {
  bool libtorch_cuda_on_disk = false;
  std::string libtorch_folder;  // shown in messages
  bool module_on_disk = false;  // libbellows_cuda.so
  std::optional<bool> loaded;   // both in this process; absent: judged from disk alone
  bool too_late = false;        // LibTorch had settled that there is no CUDA before it was loaded
  std::string load_error;       // why loading failed, where it was tried
  int cuda_major = 0;           // CUDA LibTorch was built for; 0: unknown, then any driver will do
  std::vector<CudaArch> archs;  // what LibTorch's kernels were built for; empty: unknown
  std::optional<int> libtorch_devices;  // devices LibTorch itself finds, where it is loaded
  CudaDriver driver;
};

struct CudaReport {
  CudaState state = CudaState::driver_missing;
  std::string sentence;  // what is so: "this LibTorch is a CPU build (…)"
  std::string remedy;    // what to do; empty where usable and nothing is to be warned of
  bool usable() const { return state == CudaState::usable; }
};

/// Pure.
CudaReport cuda_state(const CudaFacts& facts);

}  // namespace bellows
