// Small text helpers: joining values into a message, and finding the word a user probably meant.
#pragma once

#include <cstdint>
#include <locale>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace bellows {

/// Joins anything that has operator<< into one string: concat("got ", 3, " of ", 4). Numbers are
/// written in the C locale, whatever the program's own.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return out.str();
}

/// "a, b, c"; empty for no words.
std::string join(std::span<const std::string> words, std::string_view separator = ", ");

/// The candidate nearest to `word` by Damerau-Levenshtein distance (insertions, deletions,
/// substitutions, swaps of neighbours; upper and lower case of ASCII are the same; ties: the
/// first), or empty when none is within a third of the longer length, rounded up.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// 1536 -> "1.5 KiB", 512 -> "512 B".
std::string human_bytes(double bytes);

/// "4194304", "512 B", "64KiB", "512MiB", "1.5 GiB", "2TiB" (powers of 1024), "500MB", "8GB"
/// (powers of 1000) -> bytes. Upper and lower case are the same. Throws ValueError "<what>: got …,
/// expected …" for anything else, and for less than one byte.
int64_t parse_bytes(std::string_view text, const std::string& what);

/// 75.2 s -> "1:15"; 3725 -> "1:02:05"; "unknown" for what is not finite.
std::string human_seconds(double seconds);

}  // namespace bellows
