#include "bellows/data/dataset.h"

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include "bellows/core/text.h"

namespace bellows::data {
namespace {

// The same entry of all samples, and where it lies in them.
struct Column {
  std::vector<const Tree*> values;
  std::string path;

  const Tree& first() const { return *values.front(); }

  [[noreturn]] void fail(size_t position, const std::string& got,
                         const std::string& expected) const {
    throw ValueError(concat("collate: ", path.empty() ? "" : "entry '" + path + "' of ", "sample ",
                            position, " of the batch has ", got, ", expected ", expected,
                            " as in sample 0: samples of one batch must have the same structure"));
  }

  // Applies `describe` to all values; throws unless all descriptions equal the first one.
  template <class Describe>
  void check_equal(std::string_view what, Describe describe) const {
    const auto expected = describe(first());
    for (size_t i = 1; i < values.size(); ++i) {
      const auto got = describe(*values[i]);
      if (got != expected) fail(i, concat(what, " ", got), concat(what, " ", expected));
    }
  }

  // The column of the entries that `pick` takes out of each value.
  template <class Pick>
  Column entry(const std::string& name, Pick pick) const {
    Column result{{}, path.empty() ? name : path + "." + name};
    result.values.reserve(values.size());
    for (const Tree* value : values) result.values.push_back(&pick(*value));
    return result;
  }
};

Tree collate_column(const Column& column);

Tree collate_tensors(const Column& column) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(column.values.size());
  for (size_t i = 0; i < column.values.size(); ++i) {
    tensors.push_back(column.values[i]->tensor());
    if (!tensors.back().defined()) column.fail(i, "an undefined tensor", "a tensor");
  }
  column.check_equal("shape", [](const Tree& value) { return value.tensor().sizes(); });
  column.check_equal("type", [](const Tree& value) { return value.tensor().scalar_type(); });
  column.check_equal("device", [](const Tree& value) { return value.tensor().device(); });
  return at::stack(tensors);
}

template <class Number, class Read>
Tree collate_numbers(const Column& column, Read read) {
  const auto count = static_cast<int64_t>(column.values.size());
  at::Tensor result = at::empty({count}, c10::CppTypeToScalarType<Number>::value);
  std::transform(column.values.begin(), column.values.end(), result.mutable_data_ptr<Number>(),
                 [&](const Tree* value) { return read(*value); });
  return result;
}

Tree collate_lists(const Column& column) {
  column.check_equal("length", [](const Tree& value) { return value.list().size(); });
  Tree::List result;
  for (size_t i = 0; i < column.first().list().size(); ++i) {
    result.push_back(collate_column(column.entry(
        std::to_string(i), [&](const Tree& value) -> const Tree& { return value[i]; })));
  }
  return result;
}

Tree collate_dicts(const Column& column) {
  column.check_equal("keys", [](const Tree& value) {
    std::vector<std::string> keys;
    for (const auto& [key, _] : value.dict()) keys.push_back(key);
    return "{" + join(keys) + "}";
  });
  Tree::Dict result;
  for (const auto& [key, _] : column.first().dict()) {
    result.emplace(
        key, collate_column(column.entry(
                 key, [&key = key](const Tree& value) -> const Tree& { return value.at(key); })));
  }
  return result;
}

Tree collate_column(const Column& column) {
  column.check_equal("a value of kind", [](const Tree& value) { return value.kind(); });
  const Tree& first = column.first();
  if (first.is_tensor()) return collate_tensors(column);
  if (first.is_bool()) {
    return collate_numbers<bool>(column, [](const Tree& value) { return value.boolean(); });
  }
  if (first.is_int()) {
    return collate_numbers<int64_t>(column, [](const Tree& value) { return value.integer(); });
  }
  if (first.is_double()) {
    return collate_numbers<double>(column, [](const Tree& value) { return value.number(); });
  }
  if (first.is_list()) return collate_lists(column);
  if (first.is_dict()) return collate_dicts(column);
  if (first.empty()) column.fail(0, "no value", "a tensor, number, string, list or dictionary");
  Tree::List strings;
  for (const Tree* value : column.values) strings.push_back(*value);
  return strings;
}

}  // namespace

SampleError::SampleError(int64_t index, const std::string& cause)
    : Error(concat("sample ", index, ": ", cause)), index_(index) {}

void check_indices(std::span<const int64_t> indices, int64_t size) {
  if (indices.empty())
    throw ValueError("dataset: got no indices, expected at least one for a batch");
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= size) {
      throw ValueError(concat("dataset: index ", indices[i], " (place ", i, " of ", indices.size(),
                              ") is out of range, expected 0 to ", size - 1));
    }
  }
}

Tree Dataset::get_batch(std::span<const int64_t> indices) const {
  check_indices(indices, size());
  std::vector<Tree> samples;
  samples.reserve(indices.size());
  for (const int64_t index : indices) {
    try {
      samples.push_back(get(index));
    } catch (const c10::Error& error) {
      std::throw_with_nested(SampleError(index, error.what_without_backtrace()));
    } catch (const std::exception& error) {
      std::throw_with_nested(SampleError(index, error.what()));
    }
  }
  return collate(samples);
}

Tree collate(std::span<const Tree> samples) {
  if (samples.empty()) throw ValueError("collate: got no samples, expected at least one");
  Column column;
  for (const Tree& sample : samples) column.values.push_back(&sample);
  return collate_column(column);
}

}  // namespace bellows::data
