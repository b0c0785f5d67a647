#include "bellows/checkpoint/input_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {

InputFile::InputFile(const std::filesystem::path& path) : path_(path) {
  // Without O_NONBLOCK the opening of a pipe waits for its writer.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ == -1) throw FileError(path, "open", errno);
  struct stat status = {};
  const int failed = ::fstat(fd_, &status) == -1 ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
  if (failed == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<uint64_t>(status.st_size);
    return;
  }
  ::close(fd_);
  if (failed != 0) throw FileError(path, "read", failed);
  throw EnvironmentError(concat(path.string(), ": is a pipe or a device, expected a regular file"));
}

InputFile::~InputFile() {
  ::close(fd_);
}

void InputFile::read(uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got == -1 && errno == EINTR) continue;
    if (got == -1) throw FileError(path_, "read", errno);
    if (got == 0) throw CorruptFileError(path_, "the file became shorter while it was read");
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
}

std::shared_ptr<std::byte> InputFile::map() const {
  if (size_ == 0) return nullptr;
  void* data = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_, 0);
  if (data == MAP_FAILED) throw FileError(path_, "map", errno);
  return {static_cast<std::byte*>(data),
          [size = size_](std::byte* start) { ::munmap(start, size); }};
}

}  // namespace bellows::checkpoint
