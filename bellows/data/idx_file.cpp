#include "bellows/data/idx_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <memory>
#include <span>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/byte_source.h"

namespace bellows::data {
namespace {

struct TypeInfo {
  IdxType type;
  size_t bytes;
  std::string_view name;
};
constexpr std::array<TypeInfo, 6> kTypes = {{{IdxType::kUInt8, 1, "uint8"},
                                             {IdxType::kInt8, 1, "int8"},
                                             {IdxType::kInt16, 2, "int16"},
                                             {IdxType::kInt32, 4, "int32"},
                                             {IdxType::kFloat32, 4, "float32"},
                                             {IdxType::kFloat64, 8, "float64"}}};

const TypeInfo* find_type(uint8_t code) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeInfo& info) {
    return static_cast<uint8_t>(info.type) == code;
  });
  return found == kTypes.end() ? nullptr : &*found;
}

std::string hex(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    std::array<char, 4> buffer;
    std::snprintf(buffer.data(), buffer.size(), "%02x", byte);
    text += (text.empty() ? "" : " ") + std::string(buffer.data());
  }
  return text;
}

// Reads one opened file from front to end.
class Parser {
 public:
  explicit Parser(OpenedFile file) : source_(std::move(file.bytes)) {
    file_.path = std::move(file.path);
  }

  IdxFile parse() {
    const size_t rank = parse_magic();
    parse_sizes(rank);
    check_size();
    read_data();
    check_end();
    to_native_order();
    return std::move(file_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CorruptFileError(file_.path, what);
  }

  [[noreturn]] void fail_data(const std::string& got, const std::string& why) const {
    fail(concat("got ", got, " bytes of data, expected ", expected_, " for ",
                shape_text(file_.shape), " ", info_->name, ": ", why));
  }

  void read_header(std::span<unsigned char> out, size_t before) {
    const size_t got = source_->read(std::as_writable_bytes(out));
    if (got < out.size()) {
      const std::string defect = source_->defect();
      fail(concat("got ", before + got, " bytes, expected an IDX header of at least ",
                  before + out.size(), defect.empty() ? "" : ": ", defect));
    }
  }

  // Returns the rank.
  size_t parse_magic() {
    std::array<unsigned char, 4> magic{};
    read_header(magic, 0);
    if (magic[0] != 0 || magic[1] != 0) {
      fail(concat("got magic ", hex(magic), ", expected 00 00 <type> <rank>: not an IDX file"));
    }
    info_ = find_type(magic[2]);
    if (info_ == nullptr) {
      fail(concat("got type ", hex({&magic[2], 1}), " (magic ", hex(magic),
                  "), expected 08 (uint8), 09 (int8), 0b (int16), 0c (int32), 0d (float32) or 0e "
                  "(float64)"));
    }
    constexpr size_t kMostDimensions = 64;  // LibTorch's own limit
    if (magic[3] < 1 || magic[3] > kMostDimensions) {
      fail(concat("got rank ", int{magic[3]}, " (magic ", hex(magic), "), expected 1 to ",
                  kMostDimensions));
    }
    file_.type = info_->type;
    return magic[3];
  }

  void parse_sizes(size_t rank) {
    std::vector<unsigned char> header(4 * rank);
    read_header(header, 4);
    header_bytes_ = 4 + header.size();
    for (size_t i = 0; i < header.size(); i += 4) {
      file_.shape.push_back(int64_t{header[i]} << 24 | header[i + 1] << 16 | header[i + 2] << 8 |
                            header[i + 3]);
    }
  }

  // The number of data bytes that the sizes ask for must be possible for a file of this size. Sizes
  // of 0 count as 1 in the check for overflow: strides are products of the others.
  void check_size() {
    int64_t product = static_cast<int64_t>(info_->bytes);
    for (const int64_t size : file_.shape) {
      if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) {
        fail(concat("got sizes ", shape_text(file_.shape), " of ", info_->name,
                    ", expected fewer than 2^63 bytes"));
      }
    }
    const bool empty = std::find(file_.shape.begin(), file_.shape.end(), 0) != file_.shape.end();
    expected_ = empty ? 0 : static_cast<uint64_t>(product);
    const uint64_t most = std::max(source_->most_bytes(), header_bytes_) - header_bytes_;
    if (source_->compressed()) {
      if (expected_ > most) fail_data(concat("at most ", most), "cut off, or a damaged header");
    } else if (expected_ != most) {
      fail_data(std::to_string(most), expected_ > most ? "cut off" : "excess bytes");
    }
  }

  // In pieces that grow with what has come, so that a false header costs no memory.
  void read_data() {
    constexpr uint64_t kFirstPiece = 1 << 20;
    std::vector<std::byte>& data = file_.bytes;
    while (data.size() < expected_) {
      const size_t old = data.size();
      const uint64_t target = std::min(expected_, std::max<uint64_t>(kFirstPiece, 2 * old));
      data.reserve(target);
      data.resize(target);
      const size_t got = old + source_->read(std::span(data).subspan(old));
      if (got < target) {
        const std::string defect = source_->defect();
        fail_data(std::to_string(got), defect.empty() ? "cut off" : defect);
      }
    }
  }

  // Nothing may follow. This also makes a compressed source check its last checksum.
  void check_end() {
    std::array<std::byte, 4096> rest;
    const size_t excess = source_->read(rest);
    if (excess != 0) {
      fail_data(concat(expected_ + excess, excess == rest.size() ? " or more" : ""),
                "excess bytes");
    }
    if (!source_->defect().empty()) {
      fail(concat("got all of the ", expected_, " bytes of data, but ", source_->defect()));
    }
  }

  void to_native_order() {
    if (info_->bytes == 1 || std::endian::native == std::endian::big) return;
    const auto step = static_cast<std::ptrdiff_t>(info_->bytes);
    for (auto at = file_.bytes.begin(); at != file_.bytes.end(); at += step) {
      std::reverse(at, at + step);
    }
  }

  std::unique_ptr<ByteSource> source_;
  IdxFile file_;
  const TypeInfo* info_ = nullptr;
  uint64_t header_bytes_ = 0;
  uint64_t expected_ = 0;  // bytes of data, by the header
};

}  // namespace

std::string_view idx_type_name(IdxType type) {
  return find_type(static_cast<uint8_t>(type))->name;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(std::to_string(size));
  return join(sizes, "x");
}

IdxFile read_idx_file(const std::filesystem::path& path) {
  return Parser(open_maybe_gzip(path)).parse();
}

}  // namespace bellows::data
