#include "bellows/train/error_text.h"

#include <new>

#include <c10/util/Exception.h>

#include "bellows/device/sim.h"

namespace bellows::train {
namespace {

// LibTorch's name of simulated devices is hpu.
std::string in_our_words(std::string text) {
  for (size_t at = 0; sim::enabled() && (at = text.find("hpu:", at)) != std::string::npos;)
    text.replace(at, 3, "sim");
  return text;
}

}  // namespace

std::string message_of(const std::exception& error) {
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error))
    return in_our_words(torch->what_without_backtrace());
  if (dynamic_cast<const std::bad_alloc*>(&error)) return "out of memory";
  return error.what();
}

}  // namespace bellows::train
