// The store as c10d has it. Internal, heavy.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bellows/parallel/store.h"

namespace bellows::parallel {

c10::intrusive_ptr<c10d::Store> c10d_store(const Store& store);

}  // namespace bellows::parallel
