#include "bellows/data/collate.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

// The same entry of all samples, and where it lies in them.
struct Column {
  std::vector<const Tree*> values;
  std::string path;

  const Tree& first() const { return *values.front(); }
  int64_t count() const { return static_cast<int64_t>(values.size()); }

  [[noreturn]] void fail(size_t position, const std::string& got,
                         const std::string& expected) const {
    throw CollateError(
        position, concat("collate: ", path.empty() ? "" : "entry '" + path + "' of ", "sample ",
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

class Collator {
 public:
  Collator(BatchMemory& memory, const CollateOptions& options)
      : memory_(memory), options_(options) {}

  Tree column(const Column& column) const {
    column.check_equal("a value of kind", [](const Tree& value) { return value.kind(); });
    const Tree& first = column.first();
    if (first.is_tensor()) return tensors(column);
    if (first.is_bool()) {
      return numbers<bool>(column, [](const Tree& value) { return value.boolean(); });
    }
    if (first.is_int()) {
      return numbers<int64_t>(column, [](const Tree& value) { return value.integer(); });
    }
    if (first.is_double()) {
      return numbers<double>(column, [](const Tree& value) { return value.number(); });
    }
    if (first.is_list()) return lists(column);
    if (first.is_dict()) return dicts(column);
    if (first.empty()) column.fail(0, "no value", "a tensor, number, string, list or dictionary");
    Tree::List strings;
    for (const Tree* value : column.values) strings.push_back(*value);
    return strings;
  }

 private:
  Tree tensors(const Column& column) const {
    check_tensors(column);
    const at::Tensor& first = column.first().tensor();
    std::vector<int64_t> sizes = first.sizes().vec();
    bool ragged = false;
    for (const Tree* value : column.values) {
      const auto other = value->tensor().sizes();
      for (size_t d = 0; d < sizes.size(); ++d) {
        ragged = ragged || other[d] != sizes[d];
        sizes[d] = std::max(sizes[d], other[d]);
      }
    }
    sizes.insert(sizes.begin(), column.count());
    at::Tensor result = memory_.empty(sizes, first.scalar_type());
    if (ragged) result.fill_(*options_.pad);
    copy_rows(column, result, ragged);
    return result;
  }

  void check_tensors(const Column& column) const {
    for (size_t i = 0; i < column.values.size(); ++i) {
      const at::Tensor& tensor = column.values[i]->tensor();
      if (!tensor.defined()) column.fail(i, "an undefined tensor", "a tensor");
      if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided) {
        column.fail(i, concat("a ", tensor.layout(), " tensor on device ", tensor.device()),
                    "a dense tensor on device cpu");
      }
    }
    if (options_.pad) {
      column.check_equal("rank", [](const Tree& value) { return value.tensor().dim(); });
    } else {
      column.check_equal("shape", [](const Tree& value) { return value.tensor().sizes(); });
    }
    column.check_equal("type", [](const Tree& value) { return value.tensor().scalar_type(); });
  }

  static void copy_rows(const Column& column, const at::Tensor& result, bool ragged) {
    auto* to = static_cast<char*>(result.mutable_data_ptr());
    const size_t row_bytes = result.nbytes() / column.values.size();
    for (int64_t i = 0; i < column.count(); ++i) {
      const at::Tensor& from = column.values[i]->tensor();
      const bool plain = from.is_contiguous() && !from.is_conj() && !from.is_neg();
      if (plain && !ragged) {
        if (row_bytes != 0) std::memcpy(to + i * row_bytes, from.const_data_ptr(), row_bytes);
        continue;
      }
      at::Tensor row = result.select(0, i);
      for (int64_t d = 0; d < from.dim(); ++d) row = row.narrow(d, 0, from.size(d));
      row.copy_(from.detach());
    }
  }

  template <class Number, class Read>
  Tree numbers(const Column& column, Read read) const {
    at::Tensor result = memory_.empty({column.count()}, c10::CppTypeToScalarType<Number>::value);
    std::transform(column.values.begin(), column.values.end(), result.mutable_data_ptr<Number>(),
                   [&](const Tree* value) { return read(*value); });
    return result;
  }

  Tree lists(const Column& column) const {
    column.check_equal("length", [](const Tree& value) { return value.list().size(); });
    Tree::List result;
    for (size_t i = 0; i < column.first().list().size(); ++i) {
      result.push_back(this->column(column.entry(
          std::to_string(i), [&](const Tree& value) -> const Tree& { return value[i]; })));
    }
    return result;
  }

  Tree dicts(const Column& column) const {
    column.check_equal("keys", [](const Tree& value) {
      std::vector<std::string> keys;
      for (const auto& [key, _] : value.dict()) keys.push_back(key);
      return "{" + join(keys) + "}";
    });
    Tree::Dict result;
    for (const auto& [key, _] : column.first().dict()) {
      result.emplace(
          key, this->column(column.entry(
                   key, [&key = key](const Tree& value) -> const Tree& { return value.at(key); })));
    }
    return result;
  }

  BatchMemory& memory_;
  const CollateOptions& options_;
};

}  // namespace

Tree collate(std::span<const Tree> samples, BatchMemory& memory, const CollateOptions& options) {
  if (samples.empty()) throw ValueError("collate: got no samples, expected at least one");
  Column column;
  for (const Tree& sample : samples) column.values.push_back(&sample);
  return Collator(memory, options).column(column);
}

Tree collate(std::span<const Tree> samples) {
  BatchMemory memory;
  return collate(samples, memory);
}

}  // namespace bellows::data
