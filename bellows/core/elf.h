// What a program or shared library on disk needs and holds, read from the file without loading it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace bellows {

/// A 64-bit little-endian ELF file. Every offset and size in the file is checked against the file
/// before it is used. Value semantics; the file stays open as long as a copy lives.
class ElfFile {
 public:
  /// Throws FileError where it cannot be opened, CorruptFileError where it is no such file or is
  /// cut short.
  explicit ElfFile(const std::filesystem::path& path);

  /// Libraries it asks the loader for (DT_NEEDED), in order; empty for a static program.
  std::vector<std::string> needed() const;

  /// The dynamic string table: names of all symbols it gives and takes, each ended by a zero byte.
  std::string dynamic_strings() const;

  /// Place of a section in the file, {0, 0} where there is none of that name.
  struct Range {
    uint64_t offset = 0;
    uint64_t size = 0;
  };
  Range section(std::string_view name) const;

  /// `size` bytes at `offset`. Throws CorruptFileError beyond the end.
  std::string bytes(uint64_t offset, uint64_t size) const;

 private:
  struct File;
  struct Dynamic;
  Dynamic read_dynamic() const;

  std::shared_ptr<const File> file_;
};

}  // namespace bellows
