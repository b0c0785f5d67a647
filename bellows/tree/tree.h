// Any nest of tensors, numbers and strings: a sample, a batch, a model's input, a state dict. The
// role of PyTorch's torch.utils._pytree.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace bellows {

/// Tensors with their names, in a fixed order (for a model: the order of registration).
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A value: nothing, a tensor, a bool, an integer, a double, a string, a list of trees or a
/// dictionary of trees (sorted by key). Copying copies the structure; tensors are shared, as
/// everywhere in PyTorch. Accessors throw ValueError that names what is there instead.
class Tree {
 public:
  using List = std::vector<Tree>;
  using Dict = std::map<std::string, Tree, std::less<>>;

  Tree() = default;
  Tree(at::Tensor value) : value_(std::move(value)) {}     // NOLINT: implicit on purpose
  Tree(bool value) : value_(value) {}                      // NOLINT
  Tree(int value) : value_(int64_t{value}) {}              // NOLINT
  Tree(int64_t value) : value_(value) {}                   // NOLINT
  Tree(double value) : value_(value) {}                    // NOLINT
  Tree(std::string value) : value_(std::move(value)) {}    // NOLINT
  Tree(const char* value) : value_(std::string(value)) {}  // NOLINT
  Tree(List value) : value_(std::move(value)) {}           // NOLINT
  Tree(Dict value) : value_(std::move(value)) {}           // NOLINT

  bool empty() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_tensor() const { return std::holds_alternative<at::Tensor>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_double() const { return std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_list() const { return std::holds_alternative<List>(value_); }
  bool is_dict() const { return std::holds_alternative<Dict>(value_); }
  /// "nothing", "tensor", "bool", "integer", "double", "string", "list" or "dictionary".
  std::string_view kind() const;

  const at::Tensor& tensor() const;
  bool boolean() const;
  int64_t integer() const;
  /// A double, or an integer as one.
  double number() const;
  const std::string& string() const;
  const List& list() const&;
  List& list() &;
  List list() &&;
  const Dict& dict() const&;
  Dict& dict() &;
  Dict dict() &&;

  /// Element of a list, or value of a key; out of range or absent: ValueError that lists the keys.
  const Tree& operator[](size_t index) const;
  const Tree& at(std::string_view key) const;
  /// Whether this is a dictionary with that key; never throws.
  bool contains(std::string_view key) const;

  /// The same structure with every tensor replaced by fn(tensor).
  Tree map(const std::function<at::Tensor(const at::Tensor&)>& fn) const;
  /// Calls visit(path, tensor) for every tensor, depth first; a path is "a.b.0", and empty for a
  /// tree that is itself a tensor.
  void for_each_tensor(
      const std::function<void(const std::string& path, const at::Tensor&)>& visit) const;

 private:
  std::variant<std::monostate, at::Tensor, bool, int64_t, double, std::string, List, Dict> value_;
};

}  // namespace bellows
