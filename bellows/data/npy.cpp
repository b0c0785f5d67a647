#include "bellows/data/npy.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "bellows/core/error.h"
#include "bellows/data/mapped_file.h"
#include "bellows/data/npy_file.h"

namespace bellows::data {
namespace {

at::ScalarType scalar_type(const NpyHeader& header) {
  const size_t bytes = header.item_bytes;
  switch (header.kind) {
    case 'b':
      return at::kBool;
    case 'i':
      return bytes == 1 ? at::kChar : bytes == 2 ? at::kShort : bytes == 4 ? at::kInt : at::kLong;
    case 'u':
      return bytes == 1   ? at::kByte
             : bytes == 2 ? at::kUInt16
             : bytes == 4 ? at::kUInt32
                          : at::kUInt64;
    case 'f':
      return bytes == 2 ? at::kHalf : bytes == 4 ? at::kFloat : at::kDouble;
    default:
      return bytes == 8 ? at::kComplexFloat : at::kComplexDouble;
  }
}

// Of a Fortran array the sizes are reversed here; the tensor is transposed at the end.
std::vector<int64_t> row_major_shape(const NpyHeader& header) {
  std::vector<int64_t> shape = header.shape;
  if (header.fortran) std::reverse(shape.begin(), shape.end());
  return shape;
}

void to_native_order(std::byte* data, size_t bytes, const NpyHeader& header) {
  const size_t step = header.kind == 'c' ? header.item_bytes / 2 : header.item_bytes;
  if (!header.big_endian || step == 1) return;
  for (size_t at = 0; at < bytes; at += step) std::reverse(data + at, data + at + step);
}

void check_booleans(std::span<const std::byte> data, const NpyHeader& header,
                    const std::filesystem::path& path) {
  if (header.kind != 'b') return;
  const auto bad =
      std::find_if(data.begin(), data.end(), [](std::byte b) { return b > std::byte{1}; });
  if (bad != data.end()) {
    throw CorruptFileError(path, "got a bool of " + std::to_string(std::to_integer<int>(*bad)) +
                                     " at place " + std::to_string(bad - data.begin()) +
                                     ", expected 0 or 1");
  }
}

at::Tensor copied(std::span<const std::byte> file, const std::filesystem::path& path) {
  const NpyHeader header = parse_npy(file, path);
  const auto data = file.subspan(header.data_offset);
  check_booleans(data, header, path);
  const at::Tensor result = at::empty(row_major_shape(header), scalar_type(header));
  auto* to = static_cast<std::byte*>(result.mutable_data_ptr());
  if (!data.empty()) std::memcpy(to, data.data(), data.size());
  to_native_order(to, data.size(), header);
  if (!header.fortran) return result;
  std::vector<int64_t> reversed(header.shape.size());
  std::iota(reversed.rbegin(), reversed.rend(), int64_t{0});
  return result.permute(reversed);
}

}  // namespace

at::Tensor read_npy(const std::filesystem::path& path, const NpyOptions& options) {
  auto file = std::make_shared<MappedFile>(path);
  if (!options.map) return copied(file->bytes(), path);
  const NpyHeader header = parse_npy(file->bytes(), path);
  const auto data = file->bytes().subspan(header.data_offset);
  check_booleans(data, header, path);
  const bool aligned = header.data_offset % header.item_bytes == 0;
  if (header.big_endian || header.fortran || !aligned) {
    throw ValueError(path.string() +
                     ": cannot be mapped: got Fortran order, big-endian or unaligned data, "
                     "expected none of these");
  }
  return at::from_blob(
      const_cast<std::byte*>(data.data()), header.shape, [file](void*) {}, scalar_type(header));
}

at::Tensor decode_npy(std::span<const std::byte> file, const std::filesystem::path& name) {
  return copied(file, name);
}

}  // namespace bellows::data
