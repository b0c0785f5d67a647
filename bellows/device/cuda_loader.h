// Opening LibTorch's CUDA library and Bellows' CUDA module. Internal: programs call init()
// (init.h).
#pragma once

#include <filesystem>
#include <string>

#include "bellows/core/cuda_state.h"

namespace bellows {

/// Where the two libraries are, found from where libtorch_cpu and this library were loaded.
/// BELLOWS_CUDA_MODULE, where set, names the module's file.
struct CudaFiles {
  std::filesystem::path libtorch_cuda;  // empty: a CPU build
  std::filesystem::path module;         // empty: built without it
  std::filesystem::path libtorch_lib;   // the folder of libtorch_cpu
};
CudaFiles find_cuda_files();

/// Opens both, by full path, whether or not there is a driver. A file that does not open is kept
/// for cuda_report(), not thrown; EnvironmentError where LibTorch had already settled that there is
/// no CUDA. Once in a process: later calls change nothing.
void load_cuda(const CudaFiles& files);

/// A further function of the loaded module, of floors above this one; null where there is none.
void* cuda_module_symbol(const char* name);

/// The facts about this process, asked anew at each call.
CudaFacts gather_cuda_facts();

}  // namespace bellows
