#include "bellows/train/config.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

// toml++ 3.3 takes some faults in a file for faults of its own: it aborts in a debug build, and
// lets the compiler assume them away in others. It reports them as errors where it goes on.
#if __has_include(<toml++/impl/preprocessor.h>)
#include <toml++/impl/preprocessor.h>
#undef TOML_ASSERT
#undef TOML_ASSERT_ASSUME
#define TOML_ASSERT(expr) static_assert(true)
#define TOML_ASSERT_ASSUME(expr) static_assert(true)
#endif
#include <toml++/toml.h>

#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"

namespace bellows::train {
namespace {

const std::vector<std::string> kTables = {"run",      "data",       "model",
                                          "optim",    "schedule",   "precision",
                                          "parallel", "checkpoint", "early_stopping"};

template <class T>
std::vector<T> elements(const toml::array& array) {
  std::vector<T> values;
  for (const auto& element : array) values.push_back(*element.value<T>());
  return values;
}

std::optional<OptionValue> list_value(const toml::array& array) {
  const auto all = [&](auto... types) {
    return std::all_of(array.begin(), array.end(), [&](const toml::node& element) {
      return ((element.type() == types) || ...);
    });
  };
  if (all(toml::node_type::integer)) return elements<int64_t>(array);
  if (all(toml::node_type::integer, toml::node_type::floating_point))
    return elements<double>(array);
  if (all(toml::node_type::string)) return elements<std::string>(array);
  return std::nullopt;
}

std::optional<OptionValue> option_value(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::boolean:
      return node.as_boolean()->get();
    case toml::node_type::integer:
      return node.as_integer()->get();
    case toml::node_type::floating_point:
      return node.as_floating_point()->get();
    case toml::node_type::string:
      return node.as_string()->get();
    case toml::node_type::array:
      return list_value(*node.as_array());
    default:
      return std::nullopt;
  }
}

constexpr const char* kValueKinds =
    "expected true or false, a number, a string, or a list of numbers or of strings";

[[noreturn]] void unknown_table(const std::string& origin, const std::string& name) {
  const auto guess = nearest(name, kTables);
  throw ValueError(
      origin + ": unknown table [" + name + "]" +
      (guess.empty() ? "; the tables are " + join(kTables) : "; did you mean [" + guess + "]?"));
}

}  // namespace

Config::Config() {
  for (const auto& name : kTables) tables_.emplace(name, Options(name));
}

Config Config::load(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  Config config;
  toml::table document;
  try {
    document = toml::parse(text, path.string());
  } catch (const toml::parse_error& error) {
    throw ValueError(
        concat(path.string(), ":", error.source().begin.line, ": ", error.description()));
  }
  for (const auto& [table_key, node] : document) {
    const std::string name(table_key.str());
    const auto origin = [&](const toml::node& at) {
      return concat(path.string(), ":", at.source().begin.line);
    };
    const auto* table = node.as_table();
    if (!table) {
      throw ValueError(origin(node) + ": key " + name +
                       " stands outside of a table; put it under one of [" + join(kTables, "], [") +
                       "]");
    }
    if (std::find(kTables.begin(), kTables.end(), name) == kTables.end())
      unknown_table(origin(node), name);
    for (const auto& [key, value] : *table) {
      auto option = option_value(value);
      if (!option)
        throw ValueError(concat(origin(value), ": ", name, ".", key.str(), ": ", kValueKinds));
      config.table(name).set(std::string(key.str()), std::move(*option), origin(value));
    }
  }
  return config;
}

void Config::set(const std::string& assignment) {
  const std::string origin = "--set " + assignment;
  const auto equals = assignment.find('=');
  const auto dot = assignment.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals || dot == 0 ||
      dot + 1 == equals) {
    throw ValueError(origin + ": expected table.key=value, for example optim.lr=3e-4");
  }
  const std::string name = assignment.substr(0, dot);
  const std::string key = assignment.substr(dot + 1, equals - dot - 1);
  const std::string text = assignment.substr(equals + 1);
  if (std::find(kTables.begin(), kTables.end(), name) == kTables.end()) unknown_table(origin, name);
  OptionValue value = text;
  try {
    const toml::table parsed = toml::parse("value = " + text);
    const auto option = parsed.size() == 1 ? option_value(*parsed.get("value")) : std::nullopt;
    if (!option) throw ValueError(origin + ": " + kValueKinds);
    value = *option;
  } catch (const toml::parse_error&) {
    // Not a TOML value: a bare word, such as a device or a path. What looks like a list or a quoted
    // string was meant as TOML, and is refused.
    if (text.find_first_of("[\"'\n") != std::string::npos)
      throw ValueError(origin + ": " + kValueKinds);
  }
  table(name).set(key, std::move(value), origin);
}

Options& Config::table(const std::string& name) {
  const auto found = tables_.find(name);
  if (found == tables_.end()) throw ValueError("no configuration table is named " + name);
  return found->second;
}

void Config::reject_unknown() const {
  for (const auto& name : kTables) tables_.at(name).reject_unknown();
}

std::string Config::resolved() const {
  std::string text;
  for (const auto& name : kTables) {
    const auto values = tables_.at(name).resolved();
    if (values.empty()) continue;
    text += (text.empty() ? "[" : "\n[") + name + "]\n";
    for (const auto& [key, value] : values) text += key + " = " + to_toml(value) + "\n";
  }
  return text;
}

}  // namespace bellows::train
