// A tree as JSON and tensors: numbers and text in the JSON, tensors by name beside it. Exact both
// ways: all doubles (also NaN and infinities), 64-bit integers, empty values, text of any bytes.
//
// Where JSON has no form: {"$tensor": name or null}, {"$double": "nan" | "inf" | "-inf"},
// {"$bytes": hex}. A dictionary's own key that begins with $ gets another $; one that is not UTF-8
// becomes "$x" and its hex.
#pragma once

#include <map>
#include <string>

#include "bellows/tree/tree.h"

namespace bellows::checkpoint {

/// Appends the tensors, named by their path ("state.fc.weight.exp_avg"). Throws ValueError for a
/// nest deeper than 200.
std::string tree_to_json(const Tree& tree, NamedTensors& tensors);

/// The tree again. Tensors that it mentions are taken out of `tensors`. Throws ValueError for text
/// that tree_to_json does not write, and for a tensor that is not there.
Tree tree_from_json(const std::string& text, std::map<std::string, at::Tensor>& tensors);

/// Whether JSON can hold the text as it is.
bool is_utf8(const std::string& text);

}  // namespace bellows::checkpoint
