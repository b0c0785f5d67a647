#include "bellows/optim/schedule.h"

#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::optim {

LinearLR::LinearLR(LinearLROptions options) : options_(options) {
  if (!(options_.start_factor > 0 && options_.start_factor <= 1)) {
    throw ValueError(concat("LinearLR: start_factor: got ", options_.start_factor,
                            ", expected above 0 and at most 1"));
  }
  if (!(options_.end_factor >= 0 && options_.end_factor <= 1)) {
    throw ValueError(
        concat("LinearLR: end_factor: got ", options_.end_factor, ", expected 0 to 1"));
  }
  if (options_.total_iters < 1) {
    throw ValueError(
        concat("LinearLR: total_iters: got ", options_.total_iters, ", expected at least 1"));
  }
}

double LinearLR::factor(int64_t step) const {
  const auto done = static_cast<double>(std::clamp<int64_t>(step, 0, options_.total_iters));
  return options_.start_factor + (options_.end_factor - options_.start_factor) * done /
                                     static_cast<double>(options_.total_iters);
}

}  // namespace bellows::optim
