// Sizes of layers and rates of dropout, as the built-in models check and read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/core/options.h"

namespace bellows::nn {

/// Throws ValueError "<model>: <name>: got X, expected 1 to 1048576." where it lies outside.
void check_size(const std::string& model, const std::string& name, int64_t size);

/// A size within these limits from the options.
int64_t size_option(Options& options, const std::string& key, int64_t fallback);

/// Throws ValueError "<model>: dropout: got X, expected 0 or more and less than 1." outside of it.
/// PyTorch takes 1 as well, which leaves nothing to learn from.
void check_dropout(const std::string& model, double rate);

/// `dropout` within these limits from the options.
double dropout_option(Options& options, double fallback);

/// A list of sizes within these limits from the options, with at least `least` entries.
std::vector<int64_t> size_list_option(Options& options, const std::string& key,
                                      std::vector<int64_t> fallback, size_t least = 0);

}  // namespace bellows::nn
