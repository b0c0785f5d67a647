#include "bellows/core/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "bellows/core/error.h"

namespace bellows {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Three rows of the table of distances between prefixes; a swap of neighbours counts as one edit.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                           lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string fixed(double value, int decimals) {
  std::array<char, 400> text;  // the longest double has 309 digits before the point
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 std::chars_format::fixed, decimals);
  return std::string(text.data(), end.ptr);
}

std::string two_digits(int64_t value) {
  return (value < 10 ? "0" : "") + std::to_string(value);
}

}  // namespace

std::string join(std::span<const std::string> words, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += separator;
    out += words[i];
  }
  return out;
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const size_t shorter = std::min(word.size(), candidate.size());
    const size_t longer = std::max(word.size(), candidate.size());
    const size_t limit = (longer + 2) / 3;
    if (longer - shorter > limit) continue;
    const size_t distance = edit_distance(word, candidate);
    if (distance > limit || (!best.empty() && distance >= best_distance)) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string human_bytes(double bytes) {
  constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (std::abs(bytes) < 1023.5) return fixed(bytes, 0) + " B";
  size_t unit = 0;
  // 1023.95 would be written as 1024.0.
  for (; std::abs(bytes) >= 1023.95 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fixed(bytes, 1) + " " + kUnits[unit];
}

int64_t parse_bytes(std::string_view text, const std::string& what) {
  constexpr std::array<std::pair<std::string_view, double>, 9> kUnits{{{"", 1},
                                                                       {"b", 1},
                                                                       {"kib", 0x1p10},
                                                                       {"mib", 0x1p20},
                                                                       {"gib", 0x1p30},
                                                                       {"tib", 0x1p40},
                                                                       {"kb", 1e3},
                                                                       {"mb", 1e6},
                                                                       {"gb", 1e9}}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' '));
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto found = std::ranges::find(kUnits, unit, &std::pair<std::string_view, double>::first);
  const double bytes = found == kUnits.end() ? 0 : number * found->second;
  if (error != std::errc() || !(bytes >= 1) || bytes > 0x1p62) {
    throw ValueError(concat(what, ": got '", text,
                            "', expected a size such as 512MiB, 2GiB or a number of bytes"));
  }
  return static_cast<int64_t>(bytes);
}

std::string human_seconds(double seconds) {
  if (!(std::abs(seconds) < 1e15)) return "unknown";
  const auto total = static_cast<int64_t>(std::llround(std::abs(seconds)));
  const int64_t hours = total / 3600;
  const int64_t minutes = total / 60 % 60;
  const std::string sign = seconds < 0 && total > 0 ? "-" : "";
  const std::string tail = ":" + two_digits(total % 60);
  if (hours == 0) return sign + std::to_string(minutes) + tail;
  return sign + std::to_string(hours) + ":" + two_digits(minutes) + tail;
}

}  // namespace bellows
