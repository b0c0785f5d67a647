// Small archives with one thing wrong at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/formats/input_bytes.h"

namespace bellows::formats::test {

inline std::string little_endian(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i, value >>= 8) text.push_back(static_cast<char>(value));
  return text;
}

struct Entry {
  std::string name;
  std::string data;
  uint16_t method = 0;
  uint16_t flags = 0;
  int64_t header = -1;  // where the directory says its header is; -1: where it is
};

/// A zip archive of entries stored as they are; checksums are 0.
inline std::string zip_of(const std::vector<Entry>& entries) {
  std::string file, directory;
  for (const Entry& entry : entries) {
    const std::string sizes = little_endian(0, 4) + little_endian(entry.data.size(), 4) +
                              little_endian(entry.data.size(), 4);
    const std::string start = little_endian(20, 2) + little_endian(entry.flags, 2) +
                              little_endian(entry.method, 2) + little_endian(0, 4) + sizes +
                              little_endian(entry.name.size(), 2) + little_endian(0, 2);
    const uint64_t header = entry.header < 0 ? file.size() : static_cast<uint64_t>(entry.header);
    directory += "PK\1\2" + little_endian(20, 2) + start + little_endian(0, 10) +
                 little_endian(header, 4) + entry.name;
    file += "PK\3\4" + start + entry.name + entry.data;
  }
  const uint64_t offset = file.size();
  return file + directory + "PK\5\6" + little_endian(0, 4) + little_endian(entries.size(), 2) +
         little_endian(entries.size(), 2) + little_endian(directory.size(), 4) +
         little_endian(offset, 4) + little_endian(0, 2);
}

/// What `fn(InputMemory)` says against `bytes`; "no error" where it takes them.
template <class Fn>
std::string error_of(const std::string& bytes, Fn fn) {
  try {
    fn(InputMemory(std::as_bytes(std::span(bytes)), "file"));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace bellows::formats::test
