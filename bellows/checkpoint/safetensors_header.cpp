#include "bellows/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "bellows/checkpoint/digest.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

using nlohmann::json;

struct Dtype {
  std::string_view name;
  int64_t bits;
};
// In order of rank, as the Python package has it.
constexpr std::array<Dtype, 22> kDtypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

// Builds a Header from JSON events; the first thing that does not fit becomes `error()`.
class HeaderEvents : public nlohmann::json_sax<json> {
 public:
  Header take_header() { return std::move(header_); }
  const std::string& error() const { return error_; }

  bool null() override { return fail("null"); }
  bool boolean(bool) override { return fail("a bool"); }
  bool number_integer(number_integer_t value) override { return fail(concat(value)); }
  bool number_float(number_float_t, const string_t& text) override { return fail(text); }
  bool binary(binary_t&) override { return fail("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) return add_dimension(value);
    if (place_ != Place::offsets) return fail(concat(value));
    if (offsets_ == 2) return refuse("got more than two data_offsets, expected [begin, end]");
    (offsets_ == 0 ? entry().begin : entry().end) = value;
    ++offsets_;
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::metadata) {
      header_.metadata[field_] = text;
      return true;
    }
    if (place_ != Place::entry || field_ != "dtype") return fail("a string");
    if (dtype_rank(text) < 0) return refuse("unknown dtype '" + text + "'");
    entry().dtype = text;
    return true;
  }

  bool key(string_t& text) override {
    field_ = text;
    if (place_ == Place::top) {
      return names_.insert(text).second || refuse("the name occurs twice");
    }
    if (!fields_.insert(text).second) return refuse("the key '" + text + "' occurs twice");
    if (place_ == Place::metadata) return true;
    if (text == "dtype" || text == "shape" || text == "data_offsets") return true;
    return refuse("unknown key '" + text + "', expected dtype, shape and data_offsets");
  }

  bool start_object(size_t) override {
    if (place_ == Place::outside) return enter(Place::top);
    if (place_ != Place::top) return fail("an object");
    fields_.clear();
    if (field_ == kMetadataKey) return enter(Place::metadata);
    header_.entries.push_back({.name = field_, .dtype = {}, .shape = {}});
    return enter(Place::entry);
  }

  bool end_object() override {
    if (place_ == Place::top) return enter(Place::outside);
    if (place_ == Place::entry && fields_.size() != 3) {
      return refuse("incomplete, expected dtype, shape and data_offsets");
    }
    return enter(Place::top);
  }

  bool start_array(size_t) override {
    if (place_ != Place::entry || field_ == "dtype") return fail("an array");
    offsets_ = 0;
    return enter(field_ == "shape" ? Place::shape : Place::offsets);
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2) {
      return refuse(concat("got ", offsets_, " data_offsets, expected [begin, end]"));
    }
    return enter(Place::entry);
  }

  bool parse_error(size_t position, const std::string&, const json::exception& what) override {
    // "[json.exception.…] parse error at …: WHAT; last read: 'raw bytes'; expected …": WHAT alone.
    std::string text = what.what();
    text = text.substr(0, text.find("; last read"));
    error_ = concat("the header is not valid JSON at byte ", position, ": ",
                    text.substr(text.find(": ") + 2));
    return false;
  }

 private:
  enum class Place { outside, top, metadata, entry, shape, offsets };

  TensorEntry& entry() { return header_.entries.back(); }

  bool enter(Place place) {
    place_ = place;
    return true;
  }

  // `what` is wrong with the entry being read.
  bool refuse(const std::string& what) {
    if (place_ == Place::metadata) {
      error_ = concat(kMetadataKey, ": ", what);
    } else {
      error_ = "tensor '" + (place_ == Place::top ? field_ : entry().name) + "': " + what;
    }
    return false;
  }

  // A value of the wrong kind for its place.
  bool fail(const std::string& got) {
    switch (place_) {
      case Place::outside:
        error_ = "the header is " + got + ", expected an object";
        return false;
      case Place::top:
        return refuse("got " + got + ", expected an object");
      case Place::metadata:
        return refuse("'" + field_ + "' is " + got + ", expected a string");
      case Place::entry:
        return refuse(field_ + " is " + got + ", expected " +
                      (field_ == "dtype" ? "a string" : "an array"));
      default:
        return refuse(field_ + " contains " + got + ", expected whole numbers from 0 to 2^63 - 1");
    }
  }

  bool add_dimension(uint64_t value) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return fail(concat(value));
    }
    entry().shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  Header header_;
  std::string error_;
  Place place_ = Place::outside;
  std::string field_;  // the last key
  int offsets_ = 0;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> fields_;
};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i == 8) return text + ", …]";
    text += concat(i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

// Bits of a tensor, or -1 where they, or the strides of an empty one, do not fit into an int64.
int64_t tensor_bits(const TensorEntry& entry) {
  int64_t bits = dtype_bits(entry.dtype);
  bool empty = false;
  for (const int64_t size : entry.shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(bits, std::max<int64_t>(size, 1), &bits)) return -1;
  }
  return empty ? 0 : bits;
}

void check_entry(const std::filesystem::path& path, const TensorEntry& entry, uint64_t position,
                 uint64_t data_bytes) {
  const auto fail = [&](const std::string& what) {
    throw CorruptFileError(path, "tensor '" + entry.name + "': " + what);
  };
  const std::string offsets = concat("data_offsets [", entry.begin, ", ", entry.end, "]");
  if (entry.end < entry.begin) fail(offsets + " end before they begin");
  if (entry.end > data_bytes) {
    fail(concat(offsets, " reach past the end of the file, which holds ", data_bytes,
                " bytes of data"));
  }
  if (entry.begin != position) {
    fail(concat(offsets, entry.begin < position ? " overlap the tensor before" : " leave a hole",
                ", expected to begin at ", position));
  }
  const int64_t bits = tensor_bits(entry);
  if (bits < 0) fail("the size of shape " + shape_text(entry.shape) + " overflows");
  if (bits % 8 != 0) {
    fail(concat("got ", bits, " bits for ", entry.dtype, " of shape ", shape_text(entry.shape),
                ", expected whole bytes"));
  }
  const int64_t bytes = bits / 8;
  if (static_cast<uint64_t>(bytes) != entry.end - entry.begin) {
    fail(concat("got ", entry.end - entry.begin, " bytes, expected ", bytes, " for ", entry.dtype,
                " of shape ", shape_text(entry.shape)));
  }
}

std::string quoted(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::type_error&) {
    throw ValueError("safetensors: got a name or metadata that is not UTF-8 ('" + text +
                     "'), expected UTF-8");
  }
}

void append_entry(std::string& text, const TensorEntry& entry) {
  text += quoted(entry.name) + ":{\"dtype\":\"" + entry.dtype + "\",\"shape\":[";
  for (size_t i = 0; i < entry.shape.size(); ++i) {
    text += (i == 0 ? "" : ",") + std::to_string(entry.shape[i]);
  }
  text += "],\"data_offsets\":[" + std::to_string(entry.begin) + "," + std::to_string(entry.end) +
          "]},";
}

std::vector<size_t> order_of_names(const Header& header) {
  std::vector<size_t> order(header.entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {},
                    [&](size_t i) -> const std::string& { return header.entries[i].name; });
  return order;
}

}  // namespace

int dtype_rank(std::string_view dtype) {
  const auto found = std::ranges::find(kDtypes, dtype, &Dtype::name);
  return found == kDtypes.end() ? -1 : static_cast<int>(found - kDtypes.begin());
}

int64_t dtype_bits(std::string_view dtype) {
  const int rank = dtype_rank(dtype);
  return rank < 0 ? 0 : kDtypes[static_cast<size_t>(rank)].bits;
}

Header parse_header(const std::filesystem::path& path, std::string_view text, uint64_t data_bytes) {
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    // The parser would take it for the end.
    throw CorruptFileError(path, concat("a zero byte at ", nul, " of the header"));
  }
  HeaderEvents events;
  if (!json::sax_parse(text, &events)) throw CorruptFileError(path, events.error());
  Header header = events.take_header();
  std::ranges::sort(header.entries, {},
                    [](const TensorEntry& entry) { return std::tie(entry.begin, entry.end); });
  uint64_t position = 0;
  for (const TensorEntry& entry : header.entries) {
    check_entry(path, entry, position, data_bytes);
    position = entry.end;
  }
  if (position != data_bytes) {
    throw CorruptFileError(path, concat("got ", data_bytes, " bytes of data, expected ", position,
                                        " from the header"));
  }
  return header;
}

uint64_t checksum_of(const TensorEntry& entry, std::span<const uint64_t> blocks) {
  std::string text = entry.name + '\0' + entry.dtype + '\0';
  for (size_t i = 0; i < entry.shape.size(); ++i) {
    text += (i == 0 ? "" : ",") + std::to_string(entry.shape[i]);
  }
  text += '\0';
  text.append(reinterpret_cast<const char*>(blocks.data()), blocks.size_bytes());
  return hash_of(text);
}

std::vector<uint64_t> take_checksums(const std::filesystem::path& path, Header& header) {
  const auto found = header.metadata.find(kChecksumKey);
  if (found == header.metadata.end()) return {};
  const std::string text = std::move(found->second);
  header.metadata.erase(found);
  std::vector<uint64_t> checksums(header.entries.size());
  const auto fail = [&](const auto&... what) {
    throw CorruptFileError(
        path, concat("the checksums (", kChecksumKey, " in ", kMetadataKey, ") ", what...,
                     "; the file was damaged, or its tensors were changed by a "
                     "program that copied the metadata"));
  };
  if (text.size() != 16 * checksums.size()) {
    fail("have ", text.size(), " digits, expected 16 for each of ", checksums.size(), " tensors");
  }
  size_t position = 0;
  for (const size_t i : order_of_names(header)) {
    const auto hash = parse_hash(std::string_view(text).substr(position, 16));
    if (!hash) fail("hold something else than hexadecimal digits");
    checksums[i] = *hash;
    position += 16;
  }
  return checksums;
}

void put_checksums(Header& header, std::span<const uint64_t> checksums) {
  std::string text;
  for (const size_t i : order_of_names(header)) text += hash_text(checksums[i]);
  header.metadata[kChecksumKey] = std::move(text);
}

std::string format_header(const Header& header) {
  std::string text = "{";
  if (!header.metadata.empty()) {
    text += quoted(std::string(kMetadataKey)) + ":{";
    for (const auto& [key, value] : header.metadata) {
      text += quoted(key) + ":" + quoted(value) + ",";
    }
    text.back() = '}';
    text += ",";
  }
  for (const TensorEntry& entry : header.entries) append_entry(text, entry);
  if (text.size() > 1) text.pop_back();
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw ValueError(concat("safetensors: the header would be ", text.size(),
                            " bytes, expected at most ", kMaxHeaderBytes,
                            "; split the tensors over several files"));
  }
  return text;
}

}  // namespace bellows::checkpoint
