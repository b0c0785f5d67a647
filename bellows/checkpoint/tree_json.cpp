#include "bellows/checkpoint/tree_json.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "bellows/checkpoint/json_text.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

using nlohmann::json;

std::string to_hex(const std::string& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    hex += {kDigits[value >> 4], kDigits[value & 15]};
  }
  return hex;
}

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(&hex[i], &hex[i] + 2, value, 16);
    if (error != std::errc() || end != &hex[i] + 2) break;
    bytes += static_cast<char>(value);
  }
  if (2 * bytes.size() != hex.size()) {
    throw ValueError(concat("got '", hex, "', expected pairs of hexadecimal digits"));
  }
  return bytes;
}

std::string key_to_json(const std::string& key) {
  if (!is_utf8(key)) return "$x" + to_hex(key);
  return key.starts_with('$') ? "$" + key : key;
}

std::string key_from_json(const std::string& key) {
  if (key.starts_with("$$")) return key.substr(1);
  if (key.starts_with("$x")) return from_hex(std::string_view(key).substr(2));
  if (key.starts_with('$')) throw ValueError("the key '" + key + "' has no meaning");
  return key;
}

class Encoder {
 public:
  explicit Encoder(NamedTensors& tensors) : tensors_(tensors) {}

  json encode(const Tree& tree, const std::string& path, int depth) {
    if (depth > kDeepestTree) {
      throw ValueError(concat("'", path, "' nests deeper than ", kDeepestTree, " levels"));
    }
    if (tree.empty()) return nullptr;
    if (tree.is_tensor()) return tensor(tree.tensor(), path);
    if (tree.is_bool()) return tree.boolean();
    if (tree.is_int()) return tree.integer();
    if (tree.is_double()) return number(tree.number());
    if (tree.is_string()) return text(tree.string());
    if (tree.is_list()) {
      json list = json::array();
      for (size_t i = 0; i < tree.list().size(); ++i) {
        list.push_back(encode(tree[i], below(path, std::to_string(i)), depth + 1));
      }
      return list;
    }
    json dict = json::object();
    for (const auto& [key, value] : tree.dict()) {
      dict[key_to_json(key)] = encode(value, below(path, key), depth + 1);
    }
    return dict;
  }

 private:
  static std::string below(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }

  static json number(double value) {
    if (std::isfinite(value)) return value;
    return {{"$double", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
  }

  static json text(const std::string& value) {
    if (is_utf8(value)) return value;
    return {{"$bytes", to_hex(value)}};
  }

  json tensor(const at::Tensor& value, const std::string& path) {
    if (!value.defined()) return {{"$tensor", nullptr}};
    const bool usable = !path.empty() && path != "__metadata__" && is_utf8(path);
    const std::string base = usable ? path : "tensor";
    std::string name = base;
    for (int n = 2; !names_.insert(name).second; ++n) name = concat(base, "#", n);
    tensors_.emplace_back(name, value);
    return {{"$tensor", name}};
  }

  NamedTensors& tensors_;
  std::set<std::string> names_;
};

class Decoder {
 public:
  explicit Decoder(std::map<std::string, at::Tensor>& tensors) : tensors_(tensors) {}

  Tree decode(const json& value) {
    switch (value.type()) {
      case json::value_t::null:
        return {};
      case json::value_t::boolean:
        return value.get<bool>();
      case json::value_t::number_integer:
        return value.get<int64_t>();
      case json::value_t::number_unsigned:
        if (value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
          throw ValueError("got the integer " + value.dump() + ", expected at most 2^63 - 1");
        }
        return value.get<int64_t>();
      case json::value_t::number_float:
        return value.get<double>();
      case json::value_t::string:
        return value.get<std::string>();
      case json::value_t::array: {
        Tree::List list;
        for (const json& one : value) list.push_back(decode(one));
        return list;
      }
      default:
        return is_special(value) ? special(value) : dict(value);
    }
  }

 private:
  static bool is_special(const json& object) {
    if (object.size() != 1) return false;
    const std::string& key = object.begin().key();
    return key == "$tensor" || key == "$double" || key == "$bytes";
  }

  Tree special(const json& object) {
    const std::string& key = object.begin().key();
    const json& value = object.begin().value();
    if (key == "$tensor" && value.is_null()) return at::Tensor();
    if (!value.is_string()) throw ValueError(key + " is " + value.dump() + ", expected text");
    const std::string text = value.get<std::string>();
    if (key == "$tensor") return take(text);
    if (key == "$bytes") return from_hex(text);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return kInfinity;
    if (text == "-inf") return -kInfinity;
    throw ValueError("got the double '" + text + "', expected nan, inf or -inf");
  }

  Tree dict(const json& object) {
    Tree::Dict dict;
    for (const auto& [key, value] : object.items()) {
      dict[key_from_json(key)] = decode(value);
    }
    return dict;
  }

  at::Tensor take(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw ValueError("tensor '" + name + "' is missing");
    at::Tensor tensor = std::move(found->second);
    tensors_.erase(found);
    return tensor;
  }

  std::map<std::string, at::Tensor>& tensors_;
};

}  // namespace

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(json(text).dump());
    return true;
  } catch (const json::type_error&) {
    return false;
  }
}

std::string tree_to_json(const Tree& tree, NamedTensors& tensors) {
  return Encoder(tensors).encode(tree, "", 0).dump();
}

Tree tree_from_json(const std::string& text, std::map<std::string, at::Tensor>& tensors) {
  const json parsed = parse_json(text, kDeepestTree + 2);  // {"$tensor": …} is a level, too
  if (parsed.is_discarded()) {
    throw ValueError(
        concat("it is not valid JSON, or nests deeper than ", kDeepestTree, " levels"));
  }
  return Decoder(tensors).decode(parsed);
}

}  // namespace bellows::checkpoint
