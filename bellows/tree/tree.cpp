#include "bellows/tree/tree.h"

#include <array>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows {
namespace {

std::vector<std::string> keys_of(const Tree::Dict& dict) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : dict) keys.push_back(key);
  return keys;
}

std::string keys_text(const Tree::Dict& dict) {
  return dict.empty() ? "no keys" : "keys " + join(keys_of(dict));
}

std::string tensor_text(const at::Tensor& tensor) {
  return tensor.defined() ? concat("a tensor of shape ", tensor.sizes()) : "an undefined tensor";
}

// What a tree is, in a message.
std::string describe(const Tree& tree) {
  if (tree.is_tensor()) return tensor_text(tree.tensor());
  if (tree.is_bool()) return tree.boolean() ? "the bool true" : "the bool false";
  if (tree.is_int()) return concat("the integer ", tree.integer());
  if (tree.is_double()) return concat("the double ", tree.number());
  if (tree.is_string()) return concat("the string \"", tree.string(), "\"");
  if (tree.is_list()) return concat("a list of length ", tree.list().size());
  if (tree.is_dict()) return "a dictionary with " + keys_text(tree.dict());
  return "nothing";
}

[[noreturn]] void wrong_kind(const Tree& tree, const char* expected) {
  throw ValueError(concat("tree: got ", describe(tree), ", expected ", expected));
}

void visit_tensors(const Tree& tree, const std::string& path,
                   const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  const std::string prefix = path.empty() ? "" : path + ".";
  if (tree.is_tensor()) {
    visit(path, tree.tensor());
  } else if (tree.is_list()) {
    size_t index = 0;
    for (const Tree& item : tree.list())
      visit_tensors(item, prefix + std::to_string(index++), visit);
  } else if (tree.is_dict()) {
    for (const auto& [key, item] : tree.dict()) visit_tensors(item, prefix + key, visit);
  }
}

}  // namespace

std::string_view Tree::kind() const {
  constexpr std::array<std::string_view, 8> kKinds = {"nothing", "tensor", "bool", "integer",
                                                      "double",  "string", "list", "dictionary"};
  static_assert(kKinds.size() == std::variant_size_v<decltype(value_)>);
  return kKinds[value_.index()];
}

const at::Tensor& Tree::tensor() const {
  if (const auto* held = std::get_if<at::Tensor>(&value_)) return *held;
  wrong_kind(*this, "a tensor");
}

bool Tree::boolean() const {
  if (const auto* held = std::get_if<bool>(&value_)) return *held;
  wrong_kind(*this, "a bool");
}

int64_t Tree::integer() const {
  if (const auto* held = std::get_if<int64_t>(&value_)) return *held;
  wrong_kind(*this, "an integer");
}

double Tree::number() const {
  if (const auto* held = std::get_if<double>(&value_)) return *held;
  if (const auto* held = std::get_if<int64_t>(&value_)) return static_cast<double>(*held);
  wrong_kind(*this, "a number");
}

const std::string& Tree::string() const {
  if (const auto* held = std::get_if<std::string>(&value_)) return *held;
  wrong_kind(*this, "a string");
}

const Tree::List& Tree::list() const& {
  if (const auto* held = std::get_if<List>(&value_)) return *held;
  wrong_kind(*this, "a list");
}

Tree::List& Tree::list() & {
  return const_cast<List&>(std::as_const(*this).list());
}

Tree::List Tree::list() && {
  return std::move(list());
}

const Tree::Dict& Tree::dict() const& {
  if (const auto* held = std::get_if<Dict>(&value_)) return *held;
  wrong_kind(*this, "a dictionary");
}

Tree::Dict& Tree::dict() & {
  return const_cast<Dict&>(std::as_const(*this).dict());
}

Tree::Dict Tree::dict() && {
  return std::move(dict());
}

const Tree& Tree::operator[](size_t index) const {
  const List& items = list();
  if (index < items.size()) return items[index];
  throw ValueError(concat("tree: got index ", index, ", expected one below ", items.size(),
                          ", the length of the list"));
}

const Tree& Tree::at(std::string_view key) const {
  const Dict& entries = dict();
  const auto found = entries.find(key);
  if (found != entries.end()) return found->second;
  const std::string near = nearest(key, keys_of(entries));
  throw ValueError(concat("tree: got key \"", key, "\", expected one of a dictionary with ",
                          keys_text(entries), near.empty() ? "" : "; did you mean " + near + "?"));
}

bool Tree::contains(std::string_view key) const {
  const auto* entries = std::get_if<Dict>(&value_);
  return entries != nullptr && entries->contains(key);
}

Tree Tree::map(const std::function<at::Tensor(const at::Tensor&)>& fn) const {
  if (is_tensor()) return fn(tensor());
  if (is_list()) {
    List out;
    out.reserve(list().size());
    for (const Tree& item : list()) out.push_back(item.map(fn));
    return out;
  }
  if (is_dict()) {
    Dict out;
    for (const auto& [key, item] : dict()) out.emplace_hint(out.end(), key, item.map(fn));
    return out;
  }
  return *this;
}

void Tree::for_each_tensor(
    const std::function<void(const std::string& path, const at::Tensor&)>& visit) const {
  visit_tensors(*this, "", visit);
}

}  // namespace bellows
