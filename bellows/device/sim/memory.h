// Memory of the simulated devices: a caching allocator for each, with a limit; and pinned host
// memory. Internal.
#pragma once

#include <memory>

#include <c10/core/Allocator.h>

namespace bellows::sim {

/// LibTorch's allocator of the kind, on the current device and stream. Sizes are rounded up to 512
/// bytes. A block goes back to the cache of the stream it was made on, and is given out again for
/// the same size there, when the streams it was recorded on have passed. At the limit, the cache is
/// emptied; then c10::OutOfMemoryError.
c10::Allocator* device_allocator();

/// Page-aligned host memory that copies to and from devices may use behind the program's back. A
/// tensor in it that is dropped stays until such a copy has run.
c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);
/// While it lives, the pinned memory that holds the pointer is not freed, whoever drops it. Null
/// where it is not pinned.
std::shared_ptr<void> use_pinned(const void* pointer);

}  // namespace bellows::sim
