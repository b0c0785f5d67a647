#include "bellows/formats/input_bytes.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::formats {

void InputBytes::check(uint64_t offset, uint64_t count) const {
  if (offset <= size() && count <= size() - offset) return;
  throw CorruptFileError(path_, concat("it ends after ", size(), " bytes, expected ", count,
                                       " more from byte ", offset, " on; the file was cut"));
}

std::string InputBytes::text(uint64_t offset, uint64_t count) const {
  check(offset, count);
  std::string text(count, '\0');
  read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

InputFile::InputFile(const std::filesystem::path& path) : InputBytes(path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ == -1) throw FileError(path, "open", errno);
  struct stat status = {};
  const int code = ::fstat(fd_, &status) == -1 ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
  if (code == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<uint64_t>(status.st_size);
    return;
  }
  ::close(fd_);
  if (code != 0) throw FileError(path, "read", code);
  throw EnvironmentError(path.string() + ": is a pipe or a device, expected a regular file");
}

InputFile::~InputFile() {
  ::close(fd_);
}

void InputFile::read(uint64_t offset, std::span<std::byte> bytes) const {
  check(offset, bytes.size());
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got == -1 && errno == EINTR) continue;
    if (got == -1) throw FileError(path(), "read", errno);
    if (got == 0) throw CorruptFileError(path(), "the file became shorter while it was read");
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
}

void InputMemory::read(uint64_t offset, std::span<std::byte> bytes) const {
  check(offset, bytes.size());
  std::ranges::copy(bytes_.subspan(offset, bytes.size()), bytes.begin());
}

}  // namespace bellows::formats
