#include "bellows/memory/out_of_memory.h"

#include <new>
#include <string_view>

#include <c10/util/Exception.h>

namespace bellows::memory {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr &&
         std::string_view(of_torch->what_without_backtrace())
                 .find("DefaultCPUAllocator: can't allocate memory") != std::string_view::npos;
}

bool is_out_of_memory(const std::exception_ptr& error) {
  if (!error) return false;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return is_out_of_memory(known);
  } catch (...) {
    return false;
  }
}

}  // namespace bellows::memory
