#include "bellows/formats/zip_directory.h"

#include <algorithm>
#include <limits>
#include <new>
#include <vector>

#include <zlib.h>

#include "bellows/core/error.h"
#include "bellows/core/printable.h"
#include "bellows/core/text.h"

namespace bellows::formats {
namespace {

constexpr size_t kEndBytes = 22;                // the end record, without its comment
constexpr size_t kEnd64Bytes = 56;              // its 64-bit form
constexpr size_t kLocator64Bytes = 20;          // where that lies
constexpr size_t kCentralBytes = 46;            // an entry of the directory, without names
constexpr size_t kLocalBytes = 30;              // the header before an entry's bytes, without names
constexpr uint16_t kStored = 0, kDeflated = 8;  // methods of compression
constexpr size_t kMostComment = 65535;
constexpr uint32_t kAll32 = std::numeric_limits<uint32_t>::max();

[[noreturn]] void corrupt(const InputBytes& file, const std::string& what) {
  throw CorruptFileError(file.path(), "zip archive: " + printable(what));
}

// A little-endian number of `T`'s size; the caller has checked that it is there.
template <class T>
T number(std::string_view bytes, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | T{static_cast<unsigned char>(bytes[at + i])} << (8 * i));
  }
  return value;
}

struct Extent {
  uint64_t offset = 0, bytes = 0, entries = 0;
};

// Where the directory lies.
Extent find_directory(const InputBytes& file) {
  if (file.size() < kEndBytes) corrupt(file, concat("got ", file.size(), " bytes; cut short"));
  const uint64_t tail_bytes = std::min<uint64_t>(file.size(), kEndBytes + kMostComment);
  const uint64_t tail_offset = file.size() - tail_bytes;
  const std::string tail = file.text(tail_offset, tail_bytes);
  for (size_t at = tail.size() - kEndBytes + 1; at-- > 0;) {
    if (tail.compare(at, 4, "PK\5\6") != 0) continue;
    if (number<uint16_t>(tail, at + 20) != tail.size() - at - kEndBytes) continue;
    Extent extent = {number<uint32_t>(tail, at + 16), number<uint32_t>(tail, at + 12),
                     number<uint16_t>(tail, at + 10)};
    uint64_t end = tail_offset + at;
    if (end >= kLocator64Bytes) {
      const std::string locator = file.text(end - kLocator64Bytes, kLocator64Bytes);
      if (locator.starts_with("PK\6\7")) {
        const auto where = number<uint64_t>(locator, 8);
        const std::string end64 = file.text(where, kEnd64Bytes);
        if (!end64.starts_with("PK\6\6")) corrupt(file, "its 64-bit end record is not there");
        extent = {number<uint64_t>(end64, 48), number<uint64_t>(end64, 40),
                  number<uint64_t>(end64, 32)};
        end = where;
      }
    }
    if (extent.offset > end || extent.bytes > end - extent.offset ||
        extent.entries > extent.bytes / kCentralBytes) {
      corrupt(file, concat("its directory of ", extent.entries, " entries (", extent.bytes,
                           " bytes from ", extent.offset, " on) does not fit before byte ", end));
    }
    return extent;
  }
  corrupt(file, "its end record is not there; the file was cut");
}

// Fields of an entry that are too large for 32 bits stand in an extra field, in this order.
void widen(const InputBytes& file, std::string_view extra, uint64_t& bytes, uint64_t& stored,
           uint64_t& header) {
  while (extra.size() >= 4) {
    const auto id = number<uint16_t>(extra, 0);
    const size_t length = number<uint16_t>(extra, 2);
    if (length > extra.size() - 4) break;
    std::string_view field = extra.substr(4, length);
    extra.remove_prefix(4 + length);
    if (id != 1) continue;
    for (uint64_t* value : {&bytes, &stored, &header}) {
      if (*value != kAll32) continue;
      if (field.size() < 8) corrupt(file, "a 64-bit size is missing");
      *value = number<uint64_t>(field, 0);
      field.remove_prefix(8);
    }
    return;
  }
}

// The entry's header stands directly before its bytes and says how long its own names are.
uint64_t data_offset(const InputBytes& file, const std::string& name, uint64_t header) {
  const std::string local = file.text(header, kLocalBytes);
  if (!local.starts_with("PK\3\4")) corrupt(file, "entry '" + name + "' has no header");
  const size_t name_bytes = number<uint16_t>(local, 26);
  if (name_bytes != name.size() || file.text(header + kLocalBytes, name_bytes) != name) {
    corrupt(file, "entry '" + name + "' has another name in its own header");
  }
  return header + kLocalBytes + name_bytes + number<uint16_t>(local, 28);
}

struct Stretch {
  uint64_t begin, end;
  const std::string* name;
};

void check_overlaps(const InputBytes& file, std::vector<Stretch> stretches, uint64_t directory) {
  std::ranges::sort(stretches, {}, &Stretch::begin);
  uint64_t end = 0;
  for (const Stretch& stretch : stretches) {
    if (stretch.begin < end || stretch.end > directory) {
      corrupt(file, "entry '" + *stretch.name + "' overlaps another or the directory");
    }
    end = stretch.end;
  }
}

}  // namespace

bool begins_as_zip(std::string_view bytes) {
  return bytes.starts_with("PK\3\4") || bytes.starts_with("PK\5\6");
}

ZipDirectory read_zip_directory(const InputBytes& file) {
  const Extent extent = find_directory(file);
  const std::string directory = file.text(extent.offset, extent.bytes);
  std::string_view rest = directory;
  ZipDirectory entries;
  std::vector<Stretch> stretches;
  for (uint64_t i = 0; i < extent.entries; ++i) {
    if (rest.size() < kCentralBytes || !rest.starts_with("PK\1\2")) {
      corrupt(file, concat("entry ", i, " of its directory is damaged"));
    }
    const size_t name_bytes = number<uint16_t>(rest, 28);
    const size_t extra_bytes = number<uint16_t>(rest, 30);
    const size_t all = kCentralBytes + name_bytes + extra_bytes + number<uint16_t>(rest, 32);
    if (all > rest.size()) corrupt(file, concat("entry ", i, " of its directory is cut short"));
    const std::string name(rest.substr(kCentralBytes, name_bytes));
    uint64_t stored = number<uint32_t>(rest, 20);
    uint64_t bytes = number<uint32_t>(rest, 24);
    uint64_t header = number<uint32_t>(rest, 42);
    widen(file, rest.substr(kCentralBytes + name_bytes, extra_bytes), bytes, stored, header);
    const auto flags = number<uint16_t>(rest, 8);
    const auto method = number<uint16_t>(rest, 10);
    const auto crc32 = number<uint32_t>(rest, 16);
    rest.remove_prefix(all);
    if (name.ends_with('/') && bytes == 0) continue;
    if ((flags & 1) != 0 || (method != kStored && method != kDeflated)) {
      throw ValueError(concat(file.path().string(), ": zip archive: entry '", printable(name),
                              "' is ",
                              (flags & 1) != 0 ? "encrypted" : "compressed in an unusual way",
                              ", expected entries as PyTorch writes them"));
    }
    if (method == kStored && stored != bytes) {
      corrupt(file, concat("entry '", name, "' has ", stored, " bytes stored for ", bytes));
    }
    const uint64_t offset = data_offset(file, name, header);
    if (offset > extent.offset || stored > extent.offset - offset) {
      corrupt(file, concat("entry '", name, "' has ", stored, " bytes from ", offset,
                           " on, expected them before byte ", extent.offset));
    }
    const auto [added, is_new] = entries.emplace(
        name,
        ZipEntry{
            .offset = offset, .bytes = stored, .crc32 = crc32, .compressed = method == kDeflated});
    if (!is_new) corrupt(file, "two entries are named '" + name + "'");
    stretches.push_back({header, offset + stored, &added->first});
  }
  check_overlaps(file, std::move(stretches), extent.offset);
  return entries;
}

const ZipEntry& stored_entry(const InputBytes& file, const std::string& name,
                             const ZipEntry& entry) {
  if (!entry.compressed) return entry;
  throw ValueError(concat(file.path().string(), ": zip archive: entry '", name,
                          "' is compressed, expected it stored as it is, as PyTorch writes it; "
                          "load and save the file with PyTorch"));
}

uint32_t crc32_of(std::span<const std::byte> bytes, uint32_t before) {
  return static_cast<uint32_t>(
      ::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string crc32_fault(const std::string& name, uint32_t got, uint32_t expected) {
  return concat("entry ", name, ": its CRC-32 is ", std::hex, got, ", expected ", expected);
}

std::string first_bytes(const InputBytes& file, const ZipEntry& entry, uint64_t most) {
  std::string packed = file.text(entry.offset, std::min(entry.bytes, most));
  if (!entry.compressed) return packed;
  std::string text(most, '\0');
  z_stream stream = {};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  stream.next_in = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  const int result = inflate(&stream, Z_SYNC_FLUSH);
  text.erase(text.size() - stream.avail_out);
  inflateEnd(&stream);
  if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
    corrupt(file, "a compressed entry is damaged");
  }
  return text;
}

}  // namespace bellows::formats
