#include "bellows/data/single_thread.h"

#include <dlfcn.h>

#include <ATen/Parallel.h>

namespace bellows::data {

namespace {

// at::set_num_threads would change the number for every thread that starts later, autograd's
// included. OpenMP's own setting belongs to the calling thread; it is LibTorch's OpenMP that is
// asked, since that is the one already loaded.
void set_threads(int count) {
  using SetThreads = void (*)(int);
  static const auto set =
      reinterpret_cast<SetThreads>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(count);
}

}  // namespace

void use_single_thread_of_libtorch() {
  at::get_num_threads();  // takes the process's number now, so that it does not overwrite ours
  set_threads(1);
}

SingleThreadOfLibtorch::SingleThreadOfLibtorch() : before_(at::get_num_threads()) {
  set_threads(1);
}

SingleThreadOfLibtorch::~SingleThreadOfLibtorch() {
  set_threads(before_);
}

}  // namespace bellows::data
