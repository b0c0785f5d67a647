// The options of an optimizer, described once: for each its key, its place and what it may be.
// Checks, state dicts and the configuration follow from that.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bellows/core/options.h"
#include "bellows/tree/tree.h"

namespace bellows::optim {

/// How a step is computed: by one kernel for all of it, over lists of tensors, or tensor by tensor.
/// `automatic` (in a configuration "auto") is the first of these that the optimizer has. The
/// numbers of `foreach` and `single` are the same; those of `fused` are its own.
enum class Implementation { automatic, fused, foreach, single };

/// "auto", "fused", "foreach" or "single".
const char* to_string(Implementation implementation);

/// What a number may be; always finite.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;   // low itself is not allowed
  bool below_high = false;  // high itself is not allowed

  bool contains(double value) const;
  /// "a finite number of at least 0", "a number from 0 to below 1", …
  std::string text() const;
};

inline constexpr Range kAnyNumber{};
inline constexpr Range kNotNegative{.low = 0};
inline constexpr Range kBeta{.low = 0, .high = 1, .above_low = false, .below_high = true};

/// Takes a struct of options member by member: `visit_options(visitor, options)`, which stands
/// beside each such struct, calls it once for every option.
class OptionVisitor {
 public:
  virtual ~OptionVisitor() = default;
  virtual void number(const char* key, double& value, Range range) = 0;
  virtual void integer(const char* key, int64_t& value, Range range) = 0;
  virtual void flag(const char* key, bool& value) = 0;
  /// A list of as many numbers as it has; `range` holds for each.
  virtual void numbers(const char* key, std::span<double> values, Range range) = 0;
  /// One of `words`; nothing where none was chosen.
  virtual void word(const char* key, std::optional<std::string>& value,
                    const std::vector<std::string>& words) = 0;
  virtual void optional_integer(const char* key, std::optional<int64_t>& value, Range range) = 0;
  /// Two numbers, of which the first may be missing.
  virtual void half_optional(const char* key, std::optional<double>& first, double& second,
                             Range range) = 0;
  /// No part of the state: it says how to compute, not what.
  virtual void implementation(Implementation& value, std::span<const Implementation> choices) = 0;
  /// What must hold between options; `what` is the error's text about `key`.
  virtual void rule(const char* key, bool holds, const char* what) = 0;
};

/// Every optimizer has these two.
inline constexpr std::array kForeachOrSingle{Implementation::foreach, Implementation::single};
/// Those for which LibTorch has one kernel, on the CPU and on CUDA.
inline constexpr std::array kAlsoFused{Implementation::fused, Implementation::foreach,
                                       Implementation::single};
inline constexpr std::array kOnlySingle{Implementation::single};

namespace detail {
using Visit = void (*)(OptionVisitor&, void* options);
void check(const char* optimizer, Visit visit, void* options);
Tree::Dict to_tree(Visit visit, void* options);
void from_tree(const Tree& saved, Visit visit, void* options);
void read(Options& table, Visit visit, void* options);
template <class O>
void visit(OptionVisitor& visitor, void* options) {
  visit_options(visitor, *static_cast<O*>(options));
}
}  // namespace detail

/// Throws ValueError "<optimizer>: <key>: got …, expected …" for the first option out of range.
template <class O>
void check_options(const char* optimizer, O options) {
  detail::check(optimizer, detail::visit<O>, &options);
}
/// The options that belong to a state, by key.
template <class O>
Tree::Dict options_to_tree(O options) {
  return detail::to_tree(detail::visit<O>, &options);
}
/// Takes over what options_to_tree gave; throws ValueError for a key that is missing or of another
/// type.
template <class O>
void options_from_tree(const Tree& saved, O& options) {
  detail::from_tree(saved, detail::visit<O>, &options);
}
/// Reads a table of the configuration; what it lacks keeps its value. Throws ValueError naming the
/// key and where it was written.
template <class O>
void read_options(Options& table, O& options) {
  detail::read(table, detail::visit<O>, &options);
}

}  // namespace bellows::optim
