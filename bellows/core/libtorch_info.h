// What kind of LibTorch lies in a folder, and which of its libraries are in this process; nothing
// is loaded.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/core/cuda_state.h"

namespace bellows {

/// Which std::string a library was compiled for (_GLIBCXX_USE_CXX11_ABI).
enum class CxxAbi { unknown, old, cxx11 };
std::string_view to_string(CxxAbi abi);

struct LibTorchInfo {
  std::filesystem::path root;  // the folder with lib/ and include/
  std::string version;         // "2.14.1+cu130", "2.14.1", or empty
  bool has_c10 = false;
  bool has_cpu = false;          // libtorch_cpu.so
  bool has_cuda = false;         // libtorch_cuda.so: without it this is a CPU build
  CxxAbi abi = CxxAbi::unknown;  // from the symbols of libc10.so
  int cuda_major = 0;            // CUDA it was built for; 0 where unknown or a CPU build
  /// What all kernels of libtorch_cuda.so were compiled for; empty where unknown.
  std::vector<CudaArch> cuda_archs;
  /// Libraries libtorch_cuda.so needs that the loader would not find.
  std::vector<std::string> missing;
  std::vector<std::string> damaged;  // sentences about files that could not be read
  /// Bellows' CUDA module beside this process's library or program, or beside LibTorch; empty where
  /// absent.
  std::filesystem::path bellows_cuda;
};

/// Looks at `folder` (the one with lib/, or lib/ itself). `module_folder`: where to look for
/// libbellows_cuda.so; by default the folder of the running program, and ../lib from there. Throws
/// EnvironmentError, saying what was expected, where the folder holds no libtorch_cpu.so. About 50
/// ms for a CUDA build.
LibTorchInfo inspect_libtorch(const std::filesystem::path& folder,
                              const std::filesystem::path& module_folder = {});

/// "2.14.1+cu130", "2.14.1", or empty where the folder does not tell. Reads a small file or two.
std::string libtorch_version(const std::filesystem::path& root);

/// Full path of a library in this process, by file name ("libtorch_cpu.so"); nothing where it is
/// not loaded.
std::optional<std::filesystem::path> loaded_library(std::string_view file_name);

/// The facts cuda_state() judges, for a LibTorch that is on disk only: what init() would find.
CudaFacts cuda_facts(const LibTorchInfo& info, CudaDriver driver);

}  // namespace bellows
