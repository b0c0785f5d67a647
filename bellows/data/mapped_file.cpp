#include "bellows/data/mapped_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() { ::close(fd); }
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd == -1) throw FileError(path, "open", errno);
  const Descriptor descriptor{fd};
  struct stat status {};
  if (::fstat(fd, &status) == -1) throw FileError(path, "stat", errno);
  if (S_ISDIR(status.st_mode)) throw FileError(path, "read", EISDIR);
  if (!S_ISREG(status.st_mode)) {
    throw EnvironmentError(
        concat(path.string(), ": is a pipe or a device, expected a regular file"));
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) throw FileError(path, "map", errno);
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace bellows::data
