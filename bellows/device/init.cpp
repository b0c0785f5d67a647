#include "bellows/device/init.h"

#include <atomic>
#include <cstdlib>
#include <dlfcn.h>
#include <mutex>

#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/version.h>

#include "bellows/core/agent_client.h"
#include "bellows/core/error.h"
#include "bellows/core/libtorch_info.h"
#include "bellows/core/text.h"
#include "bellows/device/cuda_loader.h"
#include "bellows/device/cuda_module.h"
#include "bellows/device/sim.h"

namespace bellows {
namespace {

namespace fs = std::filesystem;

// What load_cuda() came to. Written once, under the lock; the pointer is read without it.
struct Loaded {
  std::mutex mutex;
  bool tried = false;
  bool too_late = false;
  std::string error;
  void* handle = nullptr;  // the module's
  std::atomic<const CudaModule*> module = nullptr;
};

Loaded& loaded() {
  static Loaded state;
  return state;
}

std::atomic<bool> has_run = false;

fs::path own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0) return {};
  return fs::path(info.dli_fname).parent_path();
}

void* open(const fs::path& path, int scope, std::string& error) {
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | scope);
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    error = reason == nullptr ? path.string() + ": cannot be opened" : reason;
  }
  return handle;
}

const CudaModule* open_module(const fs::path& path, std::string& error, void*& handle) {
  handle = open(path, RTLD_LOCAL, error);
  if (handle == nullptr) return nullptr;
  auto* entry =
      reinterpret_cast<decltype(&bellows_cuda_module)>(::dlsym(handle, "bellows_cuda_module"));
  const CudaModule* module = entry == nullptr ? nullptr : entry();
  if (module == nullptr || module->version != kCudaModuleVersion) {
    error = path.string() + ": is of another Bellows; install library and module from one build";
    return nullptr;
  }
  if (std::string(module->libtorch_version) != TORCH_VERSION) {
    error = concat(path.string(), ": was built for LibTorch ", module->libtorch_version,
                   ", the library for ", TORCH_VERSION);
    return nullptr;
  }
  return module;
}

}  // namespace

CudaFiles find_cuda_files() {
  CudaFiles files;
  if (const auto cpu = loaded_library("libtorch_cpu.so")) files.libtorch_lib = cpu->parent_path();
  std::error_code error;
  const fs::path cuda = files.libtorch_lib / "libtorch_cuda.so";
  if (fs::exists(cuda, error)) files.libtorch_cuda = cuda;
  const char* given = std::getenv("BELLOWS_CUDA_MODULE");
  const fs::path module = given != nullptr ? fs::path(given) : own_folder() / "libbellows_cuda.so";
  if (fs::exists(module, error)) files.module = module;
  return files;
}

void load_cuda(const CudaFiles& files) {
  Loaded& state = loaded();
  const std::lock_guard lock(state.mutex);
  if (!state.tried) {
    state.tried = true;
    if (open(files.libtorch_cuda, RTLD_GLOBAL, state.error) == nullptr) return;
    // This asks for the hooks, and so settles them: from here on LibTorch knows that there is CUDA.
    state.too_late = !at::detail::getCUDAHooks().hasCUDART();
    if (!state.too_late) state.module = open_module(files.module, state.error, state.handle);
  }
  if (state.too_late) {
    throw EnvironmentError(
        "bellows::init() came too late: LibTorch had already settled that there is no CUDA (at the "
        "first backward or "
        "availability query); call bellows::init() first in main()");
  }
}

const CudaModule* cuda_module() {
  return loaded().module;
}

void* cuda_module_symbol(const char* name) {
  return cuda_module() == nullptr ? nullptr : ::dlsym(loaded().handle, name);
}

void init() {
  if (has_run) return;
  agent::connect();
  if (sim::enabled() || sim::wanted()) {
    sim::enable();
  } else if (cuda_driver_present()) {
    const CudaFiles files = find_cuda_files();
    if (!files.libtorch_cuda.empty() && !files.module.empty()) load_cuda(files);
  }
  has_run = true;
}

bool initialized() {
  return has_run;
}

CudaFacts gather_cuda_facts() {
  const CudaFiles files = find_cuda_files();
  CudaFacts facts;
  facts.libtorch_cuda_on_disk = !files.libtorch_cuda.empty();
  facts.libtorch_folder = files.libtorch_lib.string();
  facts.module_on_disk = !files.module.empty();
  facts.driver = probe_cuda_driver();
  if (facts.libtorch_cuda_on_disk && facts.driver.library) {
    const LibTorchInfo info = inspect_libtorch(files.libtorch_lib, files.module.parent_path());
    facts.cuda_major = info.cuda_major;
    facts.archs = info.cuda_archs;
  }
  {
    Loaded& state = loaded();
    const std::lock_guard lock(state.mutex);
    facts.too_late = state.too_late;
    facts.load_error = state.error;
    facts.loaded = state.module != nullptr;
  }
  // LibTorch complains on standard error where the driver is unfit: it is asked only where all else
  // is well.
  if (*facts.loaded && cuda_state(facts).usable())
    facts.libtorch_devices = at::detail::getCUDAHooks().deviceCount();
  return facts;
}

}  // namespace bellows
