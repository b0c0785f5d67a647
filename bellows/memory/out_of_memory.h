// Which errors mean that memory has run out.
#pragma once

#include <exception>

namespace bellows::memory {

/// Whether it is one of these: c10::OutOfMemoryError (devices), std::bad_alloc, and LibTorch's
/// error of its CPU allocator, which has no type of its own and is told by its text.
bool is_out_of_memory(const std::exception& error);
/// Of an exception in flight; nothing that is no std::exception.
bool is_out_of_memory(const std::exception_ptr& error);

}  // namespace bellows::memory
