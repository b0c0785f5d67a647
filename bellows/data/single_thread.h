// Workers are many; each must not bring LibTorch's threads along.
#pragma once

namespace bellows::data {

/// LibTorch's operators, called from this thread, use this thread alone from now on. Other threads,
/// also those that start later, keep their number.
void use_single_thread_of_libtorch();

}  // namespace bellows::data
