#include "bellows/nn/sizes.h"

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::nn {
namespace {

constexpr int64_t kMost = 1 << 20;

bool in_range(int64_t size) {
  return size >= 1 && size <= kMost;
}

}  // namespace

void check_size(const std::string& model, const std::string& name, int64_t size) {
  if (!in_range(size))
    throw ValueError(concat(model, ": ", name, ": got ", size, ", expected 1 to ", kMost, "."));
}

int64_t size_option(Options& options, const std::string& key, int64_t fallback) {
  return options.get_in<int64_t>(key, fallback, 1, kMost);
}

std::vector<int64_t> size_list_option(Options& options, const std::string& key,
                                      std::vector<int64_t> fallback, size_t least) {
  std::vector<int64_t> sizes = options.get(key, std::move(fallback));
  for (size_t i = 0; i < sizes.size(); ++i)
    if (!in_range(sizes[i]))
      options.fail(key, concat("entry ", i, ": got ", sizes[i], ", expected 1 to ", kMost));
  if (sizes.size() < least)
    options.fail(key, concat("got ", sizes.size(), " entries, expected at least ", least));
  return sizes;
}

}  // namespace bellows::nn
