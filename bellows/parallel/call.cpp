#include "bellows/parallel/call.h"

#include <utility>

namespace bellows::parallel {
namespace {
thread_local const Describe* innermost = nullptr;
}

Describe::Describe(std::string detail, int64_t bucket)
    : detail_(std::move(detail)), bucket_(bucket), before_(innermost) {
  innermost = this;
}

Describe::~Describe() {
  innermost = before_;
}

void Describe::apply(Call& call) {
  if (innermost == nullptr) return;
  call.detail = innermost->detail_;
  call.bucket = innermost->bucket_;
}

}  // namespace bellows::parallel
