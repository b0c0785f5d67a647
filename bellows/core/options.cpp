#include "bellows/core/options.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows {
namespace {

constexpr size_t kLongestShownValue = 80;

template <class T>
constexpr const char* kTypeName = nullptr;
template <>
constexpr const char* kTypeName<bool> = "boolean";
template <>
constexpr const char* kTypeName<int64_t> = "integer";
template <>
constexpr const char* kTypeName<double> = "number";
template <>
constexpr const char* kTypeName<std::string> = "string";
template <>
constexpr const char* kTypeName<std::vector<int64_t>> = "list of integers";
template <>
constexpr const char* kTypeName<std::vector<double>> = "list of numbers";
template <>
constexpr const char* kTypeName<std::vector<std::string>> = "list of strings";

template <class T>
constexpr bool kIsList = false;
template <class T>
constexpr bool kIsList<std::vector<T>> = true;

std::string toml(bool value) {
  return value ? "true" : "false";
}
std::string toml(int64_t value) {
  return std::to_string(value);
}

std::string toml(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 32>
      digits;  // the shortest form that reads back as the same value has at most 24
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  std::string text(digits.data(), end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string escaped(char c) {
  constexpr std::string_view kEscaped = "\"\\\b\t\n\f\r", kLetters = "\"\\btnfr",
                             kHex = "0123456789ABCDEF";
  const size_t known = kEscaped.find(c);
  if (known != std::string_view::npos) return {'\\', kLetters[known]};
  const auto code = static_cast<unsigned char>(c);
  if (code >= 0x20 && code != 0x7f) return {c};
  return {'\\', 'u', '0', '0', kHex[code >> 4], kHex[code & 15]};
}

std::string toml(const std::string& value) {
  std::string text = "\"";
  for (char c : value) text += escaped(c);
  return text + '"';
}

template <class T>
std::string toml(const std::vector<T>& values) {
  std::vector<std::string> texts;
  for (const T& value : values) texts.push_back(toml(value));
  return "[" + join(texts) + "]";
}

std::string shown(const OptionValue& value) {
  std::string text = to_toml(value);
  if (text.size() > kLongestShownValue) text = text.substr(0, kLongestShownValue) + "...";
  return text;
}

bool is_empty_list(const OptionValue& value) {
  return to_toml(value) == "[]";
}

std::string type_and_value(const OptionValue& value) {
  if (is_empty_list(value)) return "empty list []";
  const char* type =
      std::visit([](const auto& held) { return kTypeName<std::decay_t<decltype(held)>>; }, value);
  return concat(type, " ", shown(value));
}

// The value as a T, where it is one or may stand for one.
template <class T>
std::optional<T> as(const OptionValue& value) {
  if (const T* held = std::get_if<T>(&value)) return *held;
  if constexpr (std::is_same_v<T, double>) {
    if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  }
  if constexpr (std::is_same_v<T, std::vector<double>>) {
    if (const auto* whole = std::get_if<std::vector<int64_t>>(&value)) {
      return std::vector<double>(whole->begin(), whole->end());
    }
  }
  if constexpr (kIsList<T>) {
    if (is_empty_list(value)) return T{};
  }
  return std::nullopt;
}

template <class T>
bool is_open_low(T low) {
  using Limits = std::numeric_limits<T>;
  return low == Limits::lowest() || (Limits::has_infinity && low == -Limits::infinity());
}

template <class T>
bool is_open_high(T high) {
  using Limits = std::numeric_limits<T>;
  return high == Limits::max() || (Limits::has_infinity && high == Limits::infinity());
}

template <class T>
std::string range_text(T low, T high) {
  if (is_open_high(high) && is_open_low(low)) return "a number";
  if (is_open_high(high)) return "at least " + toml(low);
  if (is_open_low(low)) return "at most " + toml(high);
  return toml(low) + " to " + toml(high);
}

}  // namespace

std::string to_toml(const OptionValue& value) {
  return std::visit([](const auto& held) { return toml(held); }, value);
}

void Options::set(const std::string& key, OptionValue value, std::string origin) {
  entries_.insert_or_assign(key, Entry{std::move(value), std::move(origin)});
}

std::string Options::full_name(const std::string& key) const {
  return table_.empty() ? key : table_ + "." + key;
}

template <class T>
std::optional<T> Options::find(const std::string& key) {
  std::optional<OptionValue>& known = known_[key];
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return std::nullopt;
  std::optional<T> value = as<T>(entry->second.value);
  if (!value) {
    fail(key, concat("got ", type_and_value(entry->second.value), ", expected ", kTypeName<T>));
  }
  known.emplace(*value);
  return value;
}

template <class T>
T Options::get(const std::string& key, T fallback) {
  if (std::optional<T> value = find<T>(key)) return *std::move(value);
  known_[key].emplace(fallback);
  return fallback;
}

template <class T>
T Options::get_in(const std::string& key, T fallback, T low, T high) {
  const T value = get<T>(key, fallback);
  if (!(value >= low && value <= high)) {
    fail(key, concat("got ", toml(value), ", expected ", range_text(low, high)));
  }
  return value;
}

std::string Options::get_one_of(const std::string& key, std::string fallback,
                                const std::vector<std::string>& words) {
  std::string value = get<std::string>(key, std::move(fallback));
  for (const std::string& word : words) {
    if (value == word) return value;
  }
  const std::string near = nearest(value, words);
  fail(key, concat("got ", shown(value), ", expected one of ", join(words),
                   near.empty() ? "" : "; did you mean " + near + "?"));
}

void Options::reject_unknown() const {
  for (const auto& [key, entry] : entries_) {
    if (!known_.contains(key)) fail_unknown(key, entry.origin);
  }
}

void Options::fail_unknown(const std::string& key, const std::string& origin) const {
  std::vector<std::string> keys, full_names;
  for (const auto& [known, value] : known_) {
    keys.push_back(known);
    full_names.push_back(full_name(known));
  }
  const std::string near = nearest(key, keys);
  std::string hint = "no keys are known here";
  if (!near.empty()) {
    hint = "did you mean " + full_name(near) + "?";
  } else if (!keys.empty()) {
    hint = "known keys: " + join(full_names);
  }
  throw ValueError(
      concat(origin, origin.empty() ? "" : ": ", "unknown key ", full_name(key), "; ", hint));
}

void Options::fail(const std::string& key, const std::string& what) const {
  const auto entry = entries_.find(key);
  const std::string origin = entry == entries_.end() ? "" : entry->second.origin;
  throw ValueError(concat(origin, origin.empty() ? "" : ": ", full_name(key), ": ", what));
}

std::map<std::string, OptionValue> Options::resolved() const {
  std::map<std::string, OptionValue> out;
  for (const auto& [key, value] : known_) {
    if (value) out.emplace(key, *value);
  }
  return out;
}

#define BELLOWS_INSTANTIATE(...)                                         \
  template std::optional<__VA_ARGS__> Options::find(const std::string&); \
  template __VA_ARGS__ Options::get(const std::string&, __VA_ARGS__)
BELLOWS_INSTANTIATE(bool);
BELLOWS_INSTANTIATE(int64_t);
BELLOWS_INSTANTIATE(double);
BELLOWS_INSTANTIATE(std::string);
BELLOWS_INSTANTIATE(std::vector<int64_t>);
BELLOWS_INSTANTIATE(std::vector<double>);
BELLOWS_INSTANTIATE(std::vector<std::string>);
#undef BELLOWS_INSTANTIATE
template int64_t Options::get_in(const std::string&, int64_t, int64_t, int64_t);
template double Options::get_in(const std::string&, double, double, double);

}  // namespace bellows
