#include "bellows/core/elf.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows {
namespace {

// A table larger than this is a damaged header, not a library.
constexpr uint64_t kMaxTable = uint64_t{1} << 30;

template <class T>
T read_as(const std::string& bytes, size_t offset = 0) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

}  // namespace

struct ElfFile::File {
  std::filesystem::path path;
  int fd = -1;
  uint64_t size = 0;
  Elf64_Ehdr header{};
  std::vector<Elf64_Phdr> segments;

  ~File() {
    if (fd >= 0) ::close(fd);
  }

  [[noreturn]] void fail(const std::string& what) const { throw CorruptFileError(path, what); }

  std::string bytes(uint64_t offset, uint64_t count) const {
    if (offset > size || count > size - offset) {
      fail(concat("cut short: it has ", size, " bytes, expected ", count, " bytes at offset ",
                  offset));
    }
    if (count > kMaxTable) fail(concat("damaged: a table of ", count, " bytes"));
    std::string out(count, '\0');
    uint64_t done = 0;
    while (done < count) {
      const ssize_t got =
          ::pread(fd, out.data() + done, count - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw FileError(path, "read", errno);
      if (got == 0) fail("became shorter while it was read");
      done += static_cast<uint64_t>(got);
    }
    return out;
  }

  template <class T>
  std::vector<T> table(uint64_t offset, uint64_t count, uint64_t entry_size) const {
    if (count == 0) return {};
    if (entry_size != sizeof(T))
      fail(concat("damaged: a table entry has ", entry_size, " bytes, expected ", sizeof(T)));
    const std::string raw = bytes(offset, count * entry_size);
    std::vector<T> out(count);
    std::memcpy(out.data(), raw.data(), raw.size());
    return out;
  }

  // Place in the file of an address of the loaded image.
  uint64_t offset_of(uint64_t address) const {
    for (const auto& segment : segments) {
      if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
          address - segment.p_vaddr < segment.p_filesz) {
        return segment.p_offset + (address - segment.p_vaddr);
      }
    }
    fail(concat("damaged: address ", address, " lies in no segment"));
  }
};

struct ElfFile::Dynamic {
  std::vector<uint64_t> needed;  // offsets into the string table
  uint64_t strings = 0;          // place of the string table in the file
  uint64_t strings_size = 0;
};

ElfFile::ElfFile(const std::filesystem::path& path) {
  auto file = std::make_shared<File>();
  file->path = path;
  file->fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file->fd < 0) throw FileError(path, "open", errno);
  struct stat info {};
  if (::fstat(file->fd, &info) != 0) throw FileError(path, "stat", errno);
  if (!S_ISREG(info.st_mode)) file->fail("is not a regular file");
  file->size = static_cast<uint64_t>(info.st_size);

  const uint64_t head = std::min<uint64_t>(file->size, sizeof(Elf64_Ehdr));
  const std::string start = file->bytes(0, head);
  if (start.compare(0, SELFMAG, ELFMAG) != 0)
    file->fail("is not an ELF file (program or shared library)");
  if (head < sizeof(Elf64_Ehdr))
    file->fail(concat("cut short: it has ", file->size, " bytes, expected a header of 64"));
  file->header = read_as<Elf64_Ehdr>(start);
  if (file->header.e_ident[EI_CLASS] != ELFCLASS64 ||
      file->header.e_ident[EI_DATA] != ELFDATA2LSB) {
    file->fail("is not a 64-bit little-endian ELF file");
  }
  file->segments =
      file->table<Elf64_Phdr>(file->header.e_phoff, file->header.e_phnum, file->header.e_phentsize);
  file_ = std::move(file);
}

ElfFile::Dynamic ElfFile::read_dynamic() const {
  Dynamic out;
  uint64_t string_address = 0;
  for (const auto& segment : file_->segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    const auto entries = file_->table<Elf64_Dyn>(
        segment.p_offset, segment.p_filesz / sizeof(Elf64_Dyn), sizeof(Elf64_Dyn));
    for (const auto& entry : entries) {
      if (entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_NEEDED) out.needed.push_back(entry.d_un.d_val);
      if (entry.d_tag == DT_STRTAB) string_address = entry.d_un.d_ptr;
      if (entry.d_tag == DT_STRSZ) out.strings_size = entry.d_un.d_val;
    }
  }
  if (out.strings_size > 0) out.strings = file_->offset_of(string_address);
  return out;
}

std::vector<std::string> ElfFile::needed() const {
  const Dynamic dynamic = read_dynamic();
  std::vector<std::string> out;
  for (const uint64_t at : dynamic.needed) {
    if (at >= dynamic.strings_size)
      file_->fail(concat("damaged: a library name at ", at, " lies outside the names"));
    constexpr uint64_t kMaxName = 4096;
    const std::string text =
        file_->bytes(dynamic.strings + at, std::min(dynamic.strings_size - at, kMaxName));
    const size_t end = text.find('\0');
    if (end == std::string::npos)
      file_->fail(concat("damaged: the library name at ", at, " has no end"));
    out.push_back(text.substr(0, end));
  }
  return out;
}

std::string ElfFile::dynamic_strings() const {
  const Dynamic dynamic = read_dynamic();
  return dynamic.strings_size == 0 ? std::string()
                                   : file_->bytes(dynamic.strings, dynamic.strings_size);
}

ElfFile::Range ElfFile::section(std::string_view name) const {
  const auto& header = file_->header;
  const auto sections =
      file_->table<Elf64_Shdr>(header.e_shoff, header.e_shnum, header.e_shentsize);
  if (header.e_shstrndx >= sections.size()) return {};
  const auto& names = sections[header.e_shstrndx];
  const std::string text = file_->bytes(names.sh_offset, names.sh_size);
  for (const auto& section : sections) {
    if (section.sh_name >= text.size() || section.sh_type == SHT_NOBITS) continue;
    const size_t end = text.find('\0', section.sh_name);
    if (end != std::string::npos &&
        std::string_view(text).substr(section.sh_name, end - section.sh_name) == name) {
      return {section.sh_offset, section.sh_size};
    }
  }
  return {};
}

std::string ElfFile::bytes(uint64_t offset, uint64_t size) const {
  return file_->bytes(offset, size);
}

}  // namespace bellows
