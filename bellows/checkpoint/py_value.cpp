#include "bellows/checkpoint/py_value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <set>

#include "bellows/core/error.h"
#include "bellows/core/printable.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

constexpr std::array<std::string_view, std::variant_size_v<PyValue::Variant>> kKinds = {
    "NoneType", "bool",   "int",  "float", "complex", "str",
    "bytes",    "Tensor", "list", "tuple", "set",     "dict"};

template <class T>
const T& get(const PyValue& value, std::string_view expected) {
  if (const T* found = std::get_if<T>(&value.variant())) return *found;
  throw ValueError(concat("Python value: got a ", value.kind(), ", expected a ", expected));
}

// As Python prints it; whole numbers keep a point.
std::string real_text(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  const std::string shortest(text.data(), end.ptr);
  return shortest.find_first_not_of("-0123456789") == std::string::npos ? shortest + ".0"
                                                                        : shortest;
}

std::string tuple_text(const PyTuple& tuple) {
  std::vector<std::string> parts;
  for (const PyValue& item : tuple.items) {
    parts.push_back(item.is<std::string>() ? "'" + item.string() + "'" : key_text(item));
  }
  return "(" + join(parts) + (parts.size() == 1 ? ",)" : ")");
}

// Moves what a container holds into `items`.
void take_items(PyValue::Variant& value, std::vector<PyValue>& items) {
  const auto take = [&](std::vector<PyValue>& own) {
    std::ranges::move(own, std::back_inserter(items));
    own.clear();
  };
  if (auto* list = std::get_if<PyList>(&value)) take(*list);
  if (auto* tuple = std::get_if<PyTuple>(&value)) take(tuple->items);
  if (auto* set = std::get_if<PySet>(&value)) take(set->items);
  if (auto* dict = std::get_if<PyDict>(&value)) {
    for (auto& [key, item] : dict->items) {
      items.push_back(std::move(key));
      items.push_back(std::move(item));
    }
    dict->items.clear();
  }
}

class Flattener {
 public:
  void visit(const PyValue& value, const std::string& path) {
    if (value.is<at::Tensor>()) {
      if (!names_.insert(path).second) {
        throw ValueError("two tensors come under the name '" + printable(path) +
                         "', expected each name once; take a part of the file");
      }
      tensors.emplace_back(path, value.tensor());
    } else if (const auto* dict = std::get_if<PyDict>(&value.variant())) {
      for (const auto& [key, item] : dict->items) {
        visit(item, below(path, key_text(key)));
      }
    } else if (value.is<PyList>() || value.is<PyTuple>()) {
      size_t number = 0;
      for (const PyValue& item : value.items()) visit(item, below(path, std::to_string(number++)));
    }
  }
  NamedTensors tensors;

 private:
  static std::string below(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }
  std::set<std::string> names_;
};

}  // namespace

std::string key_text(const PyValue& key) {
  if (key.is<std::string>()) return key.string();
  if (key.is<int64_t>()) return std::to_string(key.integer());
  if (key.is_none()) return "None";
  if (key.is<bool>()) return key.boolean() ? "True" : "False";
  if (key.is<double>()) return real_text(key.number());
  if (const auto* bytes = std::get_if<PyBytes>(&key.variant())) return "b'" + bytes->bytes + "'";
  if (const auto* tuple = std::get_if<PyTuple>(&key.variant())) return tuple_text(*tuple);
  if (const auto* number = std::get_if<std::complex<double>>(&key.variant())) {
    return concat("(", number->real(), number->imag() < 0 ? "" : "+", number->imag(), "j)");
  }
  throw ValueError(concat("Python value: a dictionary's key is a ", key.kind()));
}

const PyValue* PyDict::find(std::string_view key) const {
  for (const auto& [own, value] : items) {
    if (own.is<std::string>() && own.string() == key) return &value;
  }
  return nullptr;
}

void PyDict::add(PyValue key, PyValue value) {
  items.emplace_back(std::move(key), std::move(value));
}

PyValue::~PyValue() {
  std::vector<PyValue> pending;
  take_items(value_, pending);
  while (!pending.empty()) {
    PyValue last = std::move(pending.back());
    pending.pop_back();
    take_items(last.value_, pending);
  }
}

std::string_view PyValue::kind() const {
  return kKinds[value_.index()];
}
bool PyValue::boolean() const {
  return get<bool>(*this, "bool");
}
int64_t PyValue::integer() const {
  return get<int64_t>(*this, "int");
}
double PyValue::number() const {
  return is<int64_t>() ? static_cast<double>(integer()) : get<double>(*this, "float");
}
const std::string& PyValue::string() const {
  return get<std::string>(*this, "str");
}
const at::Tensor& PyValue::tensor() const {
  return get<at::Tensor>(*this, "Tensor");
}
const PyDict& PyValue::dict() const {
  return get<PyDict>(*this, "dict");
}
const PyList& PyValue::items() const {
  return is<PyTuple>() ? std::get<PyTuple>(value_).items : get<PyList>(*this, "list");
}

const PyValue& PyValue::at(std::string_view key) const {
  if (const PyValue* found = dict().find(key)) return *found;
  std::vector<std::string> keys;
  for (const auto& [own, value] : dict().items) keys.push_back(key_text(own));
  throw ValueError(concat("Python dict: it has no key '", key, "', only: ", join(keys)));
}

NamedTensors flatten(const PyValue& value) {
  Flattener flattener;
  flattener.visit(value, "");
  return std::move(flattener.tensors);
}

PyValue state_dict_of(const NamedTensors& tensors) {
  PyDict dict{.items = {}, .ordered = true};
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second) {
      throw ValueError("state_dict_of: two tensors are named '" + name +
                       "', expected each name once");
    }
    dict.add(name, tensor);
  }
  return dict;
}

Tree to_tree(const PyValue& value) {
  const auto list_of = [](const std::vector<PyValue>& items) {
    Tree::List list;
    for (const PyValue& item : items) list.push_back(to_tree(item));
    return Tree(std::move(list));
  };
  if (value.is_none()) return {};
  if (value.is<bool>()) return value.boolean();
  if (value.is<int64_t>()) return value.integer();
  if (value.is<double>()) return value.number();
  if (value.is<std::string>()) return value.string();
  if (value.is<at::Tensor>()) return value.tensor();
  if (value.is<PySet>()) return list_of(std::get<PySet>(value.variant()).items);
  if (value.is<PyList>() || value.is<PyTuple>()) return list_of(value.items());
  if (!value.is<PyDict>())
    throw ValueError(concat("Python value: a tree cannot hold a ", value.kind()));
  Tree::Dict dict;
  for (const auto& [key, item] : value.dict().items) {
    if (!key.is<std::string>() && !key.is<int64_t>()) {
      throw ValueError(concat("Python value: a tree cannot hold a key that is a ", key.kind()));
    }
    if (!dict.emplace(key_text(key), to_tree(item)).second) {
      throw ValueError("Python value: two keys become '" + key_text(key) + "' in a tree");
    }
  }
  return dict;
}

PyValue from_tree(const Tree& tree) {
  if (tree.empty()) return {};
  if (tree.is_bool()) return tree.boolean();
  if (tree.is_int()) return tree.integer();
  if (tree.is_double()) return tree.number();
  if (tree.is_string()) return tree.string();
  if (tree.is_tensor()) return tree.tensor();
  if (tree.is_list()) {
    PyList list;
    for (const Tree& item : tree.list()) list.push_back(from_tree(item));
    return list;
  }
  PyDict dict;
  for (const auto& [key, item] : tree.dict()) dict.add(key, from_tree(item));
  return dict;
}

}  // namespace bellows::checkpoint
