// JSON from files that may be crafted.
#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

namespace bellows::checkpoint {

/// How many levels a tree (tree_json.h) may have.
inline constexpr int kDeepestTree = 200;

/// The value; a discarded one where the text is not JSON or its arrays and objects nest deeper than
/// `deepest`: what goes over the value by recursion then cannot exhaust the stack.
nlohmann::json parse_json(std::string_view text, int deepest);

}  // namespace bellows::checkpoint
