#include "bellows/nn/sizes.h"

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::nn {
namespace {

constexpr int64_t kMost = 1 << 20;
constexpr const char* kRates = "0 or more and less than 1";

bool in_range(int64_t size) {
  return size >= 1 && size <= kMost;
}

bool is_rate(double rate) {
  return rate >= 0 && rate < 1;
}

}  // namespace

void check_size(const std::string& model, const std::string& name, int64_t size) {
  if (!in_range(size))
    throw ValueError(concat(model, ": ", name, ": got ", size, ", expected 1 to ", kMost, "."));
}

int64_t size_option(Options& options, const std::string& key, int64_t fallback) {
  return options.get_in<int64_t>(key, fallback, 1, kMost);
}

void check_dropout(const std::string& model, double rate) {
  if (!is_rate(rate))
    throw ValueError(concat(model, ": dropout: got ", to_toml(rate), ", expected ", kRates, "."));
}

double dropout_option(Options& options, double fallback) {
  const double rate = options.get("dropout", fallback);
  if (!is_rate(rate)) options.fail("dropout", concat("got ", to_toml(rate), ", expected ", kRates));
  return rate;
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
