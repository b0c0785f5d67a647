// Workers are many; each must not bring LibTorch's threads along.
#pragma once

namespace bellows::data {

/// LibTorch's operators, called from this thread, use this thread alone from now on. Other threads,
/// also those that start later, keep their number.
void use_single_thread_of_libtorch();

/// The same for as long as it lives, for operators that take less time than waking other threads
/// does: on a busy machine that is tens of milliseconds.
class SingleThreadOfLibtorch {
 public:
  SingleThreadOfLibtorch();
  ~SingleThreadOfLibtorch();
  SingleThreadOfLibtorch(const SingleThreadOfLibtorch&) = delete;
  SingleThreadOfLibtorch& operator=(const SingleThreadOfLibtorch&) = delete;

 private:
  int before_;
};

}  // namespace bellows::data
