#include "bellows/memory/batch_size.h"

#include <algorithm>
#include <exception>

#include <c10/util/Exception.h>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/device/memory.h"
#include "bellows/memory/out_of_memory.h"

namespace bellows::memory {
namespace {

void check(const BatchSizeOptions& options) {
  const auto at_least_one = [](const char* name, int64_t value) {
    if (value < 1)
      throw ValueError(concat("find_batch_size: ", name, ": got ", value, ", expected 1 or more"));
  };
  at_least_one("start", options.start);
  at_least_one("steps", options.steps);
  if (options.limit < options.start)
    throw ValueError(concat("find_batch_size: limit: got ", options.limit, ", expected start (",
                            options.start, ") or more"));
}

class Trials {
 public:
  Trials(const std::function<void(int64_t)>& try_batch, const BatchSizeOptions& options)
      : try_batch_(try_batch), options_(options) {}

  bool fits(int64_t size, int64_t steps = 1) {
    bool own = true;
    for (int64_t i = 0; i < steps && own; ++i) own = runs(size);
    clean_up();
    const bool all = options_.agree ? options_.agree(own) : own;
    log::info(concat("find_batch_size: ", size, all ? " fits" : " does not fit",
                     steps > 1 ? concat(" ", steps, " times") : ""));
    return all;
  }

 private:
  // What a failed step held is freed with its exception, which ends here.
  bool runs(int64_t size) {
    try {
      try_batch_(size);
      synchronize(options_.device);
      return true;
    } catch (const std::exception& error) {
      if (is_out_of_memory(error)) return false;
      throw;
    }
  }
  void clean_up() const {
    if (options_.reset) options_.reset();
    empty_cache(options_.device);
  }

  const std::function<void(int64_t)>& try_batch_;
  const BatchSizeOptions& options_;
};

}  // namespace

int64_t find_batch_size(const std::function<void(int64_t)>& try_batch,
                        const BatchSizeOptions& options) {
  check(options);
  Trials trials(try_batch, options);
  int64_t good = 0, bad = options.limit + 1, size = options.start;
  while (size < bad && trials.fits(size)) {
    good = size;
    if (size == options.limit) break;
    size = std::min(2 * size, options.limit);
  }
  if (good < options.limit) bad = std::min(bad, size);
  while (good == 0 && bad > 1) {
    size = bad / 2;
    if (trials.fits(size)) {
      good = size;
    } else {
      bad = size;
    }
  }
  const auto narrow = [&] {
    while (options.search == Search::binary && bad - good > 1) {
      size = good + (bad - good) / 2;
      (trials.fits(size) ? good : bad) = size;
    }
  };
  narrow();
  // What fits once need not fit again.
  while (good > 0 && !trials.fits(good, options.steps)) {
    bad = good;
    good = options.search == Search::power ? good / 2 : good - std::max<int64_t>(good / 16, 1);
  }
  if (good == 0)
    throw Error(
        "find_batch_size: not even one sample fits: a smaller model, recomputation "
        "(memory::checkpointed) or lower precision needs less");
  return good;
}

}  // namespace bellows::memory
