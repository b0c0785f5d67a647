// Named, typed settings as they come from a configuration file or the command line, before they
// become the option structs of the C++ interface. Whoever reads a key says its type and default;
// what nobody has read is unknown, and reported with the nearest key that was asked for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace bellows {

using OptionValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>,
                                 std::vector<double>, std::vector<std::string>>;

/// One table of settings, such as [model]. Not thread-safe. Value semantics.
class Options {
 public:
  /// `table` is the name shown in errors ("model"); may be empty.
  explicit Options(std::string table = "") : table_(std::move(table)) {}

  /// Sets or replaces a key. `origin` says where it was written, e.g. "demo.toml:12" or "--set".
  void set(const std::string& key, OptionValue value, std::string origin = "");
  bool has(const std::string& key) const { return entries_.contains(key); }

  /// The value of `key`, or `fallback`; either way the key counts as known and is part of
  /// `resolved()`. A whole number is accepted where a double is asked for, also in lists; an empty
  /// list is one of any type. Throws ValueError "<origin>: <table>.<key>: got <type and value>,
  /// expected <type>". T is one of the alternatives of OptionValue.
  template <class T>
  T get(const std::string& key, T fallback);
  /// As `get` for int64_t or double, and the value must lie in [low, high] (NaN does not). The
  /// limits of the type, or infinity, leave a side open.
  template <class T>
  T get_in(const std::string& key, T fallback, T low, T high);
  /// As `get`, and the value must be one of `words`; the error lists them and the nearest.
  std::string get_one_of(const std::string& key, std::string fallback,
                         const std::vector<std::string>& words);
  /// Present or absent, without a default.
  template <class T>
  std::optional<T> find(const std::string& key);

  /// Throws ValueError for the first key that nobody asked for, with its origin and the nearest
  /// known key.
  void reject_unknown() const;

  /// An error about a value that was read: "<origin>: <table>.<key>: <what>".
  [[noreturn]] void fail(const std::string& key, const std::string& what) const;

  /// Every key asked for so far with the value in force, in order of key.
  std::map<std::string, OptionValue> resolved() const;
  const std::string& table() const { return table_; }

 private:
  struct Entry {
    OptionValue value;
    std::string origin;
  };
  std::string full_name(const std::string& key) const;
  [[noreturn]] void fail_unknown(const std::string& key, const std::string& origin) const;

  std::string table_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::optional<OptionValue>> known_;  // empty: asked for, without a value
};

/// As TOML writes it: true, 3, 0.1, "text", [1, 2]. A double always has a point or an exponent.
std::string to_toml(const OptionValue& value);

}  // namespace bellows
