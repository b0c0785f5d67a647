// What Python saves besides plain tensors: any nest of tensors, numbers, text and containers.
#pragma once

#include <complex>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "bellows/tree/tree.h"

namespace bellows::checkpoint {

class PyValue;
using PyList = std::vector<PyValue>;
struct PyTuple {
  std::vector<PyValue> items;
};
struct PySet {
  std::vector<PyValue> items;
};
struct PyBytes {
  std::string bytes;
};
/// In order of insertion. Keys are numbers, text, bytes, booleans, None or tuples of those.
struct PyDict {
  std::vector<std::pair<PyValue, PyValue>> items;
  bool ordered = false;  // a collections.OrderedDict

  /// The value of a text key; null where there is none.
  const PyValue* find(std::string_view key) const;
  void add(PyValue key, PyValue value);
};

/// None, bool, int, float, complex, str, bytes, a tensor, list, tuple, set or dict. Copies share
/// tensors. Accessors throw ValueError that names what is there instead.
class PyValue {
 public:
  using Variant = std::variant<std::monostate, bool, int64_t, double, std::complex<double>,
                               std::string, PyBytes, at::Tensor, PyList, PyTuple, PySet, PyDict>;
  PyValue() = default;
  PyValue(const PyValue&) = default;
  PyValue(PyValue&&) = default;
  PyValue& operator=(const PyValue&) = default;
  PyValue& operator=(PyValue&&) = default;
  ~PyValue();                             // takes nests of any depth apart without recursion
  PyValue(bool value) : value_(value) {}  // NOLINT: implicit on purpose
  PyValue(int value) : value_(int64_t{value}) {}              // NOLINT
  PyValue(int64_t value) : value_(value) {}                   // NOLINT
  PyValue(double value) : value_(value) {}                    // NOLINT
  PyValue(std::complex<double> value) : value_(value) {}      // NOLINT
  PyValue(const char* value) : value_(std::string(value)) {}  // NOLINT
  PyValue(std::string value) : value_(std::move(value)) {}    // NOLINT
  PyValue(PyBytes value) : value_(std::move(value)) {}        // NOLINT
  PyValue(at::Tensor value) : value_(std::move(value)) {}     // NOLINT
  PyValue(PyList value) : value_(std::move(value)) {}         // NOLINT
  PyValue(PyTuple value) : value_(std::move(value)) {}        // NOLINT
  PyValue(PySet value) : value_(std::move(value)) {}          // NOLINT
  PyValue(PyDict value) : value_(std::move(value)) {}         // NOLINT

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(value_);
  }
  bool is_none() const { return is<std::monostate>(); }
  /// Python's name of its type: "NoneType", "int", "Tensor", …
  std::string_view kind() const;

  bool boolean() const;
  int64_t integer() const;
  /// A float, or an int as one.
  double number() const;
  const std::string& string() const;
  const at::Tensor& tensor() const;
  const PyDict& dict() const;
  /// The items of a list or a tuple.
  const PyList& items() const;
  /// The value of a dictionary's text key; ValueError that lists the keys where there is none.
  const PyValue& at(std::string_view key) const;

  const Variant& variant() const { return value_; }

 private:
  Variant value_;
};

/// How a dictionary's key stands in a tensor's name: text as it is, others as Python prints them
/// (7, 2.5, None, True, ('a', 2)).
std::string key_text(const PyValue& key);
/// The tensors of a nest by their path ("model.fc.weight"; list items by number, keys as key_text
/// has them); the name of a lone tensor is empty. Tied tensors stay tied. What is no tensor is left
/// out.
/// Throws ValueError for a name that comes up twice.
NamedTensors flatten(const PyValue& value);
/// A state dict: an OrderedDict of tensors by name. Throws ValueError for a name that comes twice.
PyValue state_dict_of(const NamedTensors& tensors);

/// As a Tree: tuples and sets become lists, integer keys text. Throws ValueError for bytes and
/// complex numbers, which trees lack, and for other keys.
Tree to_tree(const PyValue& value);
PyValue from_tree(const Tree& tree);

}  // namespace bellows::checkpoint
