// The list of a zip archive's entries, for archives that PyTorch writes: all but source texts are
// stored as they are, so that each is a stretch of the file. Needs no LibTorch.
//
// A reader of our own rather than a library: it must say where an entry's bytes lie (they are read
// straight into tensors), refuse overlaps and names that occur twice, and take no memory that the
// file's size does not justify. Source: PKWARE's APPNOTE.TXT 6.3, sections 4.3 to 4.5.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "bellows/formats/input_bytes.h"

namespace bellows::formats {

struct ZipEntry {
  uint64_t offset = 0;  // of its first byte in the file
  uint64_t bytes = 0;   // there; of a compressed entry fewer than it holds
  uint32_t crc32 = 0;
  bool compressed = false;
};

using ZipDirectory = std::map<std::string, ZipEntry, std::less<>>;

/// Whether the bytes begin as a zip archive does.
bool begins_as_zip(std::string_view bytes);

/// All entries by name; directories are left out. Every entry lies within the file, and none
/// overlaps another. Throws CorruptFileError (cut short, damaged, overlapping, twice the same
/// name), ValueError (encrypted).
ZipDirectory read_zip_directory(const InputBytes& file);

/// An entry that must not be compressed, as everything that tensors consist of. Throws ValueError
/// that names it otherwise.
const ZipEntry& stored_entry(const InputBytes& file, const std::string& name,
                             const ZipEntry& entry);

/// CRC-32 of these bytes; goes on from `before`, that of the bytes ahead of them.
uint32_t crc32_of(std::span<const std::byte> bytes, uint32_t before = 0);
/// "entry data/0: its CRC-32 is 1a2b3c4d, expected 0".
std::string crc32_fault(const std::string& name, uint32_t got, uint32_t expected);

/// The first bytes of an entry, at most `most`, unpacked where it is compressed. Throws
/// CorruptFileError.
std::string first_bytes(const InputBytes& file, const ZipEntry& entry, uint64_t most);

}  // namespace bellows::formats
