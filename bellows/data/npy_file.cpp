#include "bellows/data/npy_file.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

bool known_type(char kind, size_t bytes) {
  switch (kind) {
    case 'b':
      return bytes == 1;
    case 'i':
    case 'u':
      return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
    case 'f':
      return bytes == 2 || bytes == 4 || bytes == 8;
    case 'c':
      return bytes == 8 || bytes == 16;
    default:
      return false;
  }
}

// The header is a Python dictionary with three keys, in any order.
class Parser {
 public:
  Parser(std::string_view text, const std::filesystem::path& path) : text_(text), path_(path) {}

  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (!seen_.insert(key).second) fail("a key other than " + key + " again");
      if (key == "descr") {
        type(string());
      } else if (key == "fortran_order") {
        header_.fortran = boolean();
      } else if (key == "shape") {
        shape();
      } else {
        fail("the keys descr, fortran_order and shape, not " + key);
      }
      if (accept('}')) break;
      expect(',');
    }
    skip_space();
    if (at_ != text_.size()) fail("nothing after the dictionary");
    if (seen_.size() != 3) fail("all of the keys descr, fortran_order and shape");
    return header_;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    constexpr size_t kMostShown = 100;
    std::string shown(text_.substr(0, kMostShown));
    for (char& c : shown) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
    }
    throw CorruptFileError(
        path_, concat("got header \"", shown, "\" (byte ", at_, " of it), expected ", expected));
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(concat("'", c, "'"));
  }

  std::string string() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail("a string");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("the end of a string");
    std::string value(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return value;
  }

  bool boolean() {
    skip_space();
    for (const auto& [word, value] : {std::pair{"True", true}, std::pair{"False", false}}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += std::string_view(word).size();
      return value;
    }
    fail("True or False");
  }

  void type(const std::string& descr) {
    const auto bytes = number(std::string_view(descr).substr(std::min<size_t>(descr.size(), 2)));
    const bool order =
        !descr.empty() && std::string_view("<>|=").find(descr[0]) != std::string::npos;
    if (!order || !bytes || !known_type(descr[1], static_cast<size_t>(*bytes))) {
      fail(
          "a type of bool, int8 to int64, uint8 to uint64, float16 to float64, complex64 or "
          "complex128, as '<f4', not '" +
          descr.substr(0, 20) + "'");
    }
    header_.big_endian = descr[0] == '>';
    header_.kind = descr[1];
    header_.item_bytes = static_cast<size_t>(*bytes);
  }

  static std::optional<int64_t> number(std::string_view digits) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0)
      return std::nullopt;
    return value;
  }

  void shape() {
    constexpr size_t kMostDimensions = 64;  // LibTorch's own limit
    expect('(');
    while (!accept(')')) {
      skip_space();
      const size_t end = std::min(text_.find_first_not_of("0123456789", at_), text_.size());
      const auto size = number(text_.substr(at_, end - at_));
      if (!size) fail("a size from 0 to 2^63 - 1");
      if (header_.shape.size() == kMostDimensions) fail("at most 64 dimensions");
      header_.shape.push_back(*size);
      at_ = end;
      if (accept(')')) break;
      expect(',');
    }
  }

  std::string_view text_;
  const std::filesystem::path& path_;
  size_t at_ = 0;
  std::set<std::string> seen_;
  NpyHeader header_;
};

// Sizes of 0 count as 1 in the check for overflow: strides are products of the others.
uint64_t data_bytes(const NpyHeader& header, const std::filesystem::path& path) {
  auto product = static_cast<int64_t>(header.item_bytes);
  bool empty = false;
  for (const int64_t size : header.shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product))
      throw CorruptFileError(path, "got a shape of 2^63 bytes or more, expected fewer");
  }
  return empty ? 0 : static_cast<uint64_t>(product);
}

}  // namespace

NpyHeader parse_npy(std::span<const std::byte> file, const std::filesystem::path& path) {
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  const auto fail = [&](const auto&... what) { throw CorruptFileError(path, concat(what...)); };
  if (bytes.substr(0, kMagic.size()) != kMagic || bytes.size() < 8) {
    fail("got ", bytes.size(),
         " bytes that do not begin with \\x93NUMPY and a version: not a .npy "
         "file");
  }
  const auto byte = [&](size_t at) {
    return static_cast<size_t>(std::to_integer<uint8_t>(file[at]));
  };
  const size_t version = byte(6);
  if (version < 1 || version > 3) fail("got version ", version, ".", byte(7), ", expected 1 to 3");
  const size_t length_bytes = version == 1 ? 2 : 4;
  const size_t prefix = 8 + length_bytes;
  size_t length = 0;
  if (bytes.size() >= prefix) {
    for (size_t i = 0; i < length_bytes; ++i) length |= byte(8 + i) << (8 * i);
  }
  if (bytes.size() < prefix || bytes.size() - prefix < length) {
    fail("got ", bytes.size(), " bytes, expected a header of ", prefix + length, ": cut off");
  }
  NpyHeader header = Parser(bytes.substr(prefix, length), path).parse();
  header.data_offset = prefix + length;
  const uint64_t expected = data_bytes(header, path);
  const uint64_t got = bytes.size() - header.data_offset;
  if (got != expected) {
    fail("got ", got, " bytes of data, expected ", expected, ": ",
         got < expected ? "cut off" : "excess bytes");
  }
  return header;
}

}  // namespace bellows::data
