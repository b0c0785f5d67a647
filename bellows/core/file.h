// Durable files. All writes that must survive a crash go through FileSystem, a thin seam over the
// POSIX calls, so that tests can make the n-th call fail or drop what was not synced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace bellows {

/// The POSIX calls used for writing, one member each. Each returns what the call returns and leaves
/// errno.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual int open(const char* path, int flags, mode_t mode);
  virtual ssize_t write(int fd, const void* data, size_t bytes);
  virtual ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset);
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int rename(const char* from, const char* to);
  virtual int unlink(const char* path);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int symlink(const char* target, const char* path);
};

/// The one in force: the real one unless a ScopedFileSystem is alive.
FileSystem& file_system();

/// Replaces the file system for its own lifetime (tests).
class ScopedFileSystem {
 public:
  explicit ScopedFileSystem(FileSystem& replacement);
  ~ScopedFileSystem();
  ScopedFileSystem(const ScopedFileSystem&) = delete;
  ScopedFileSystem& operator=(const ScopedFileSystem&) = delete;

 private:
  FileSystem* previous_;
};

/// An open file for writing. Move-only; closes on destruction (without a sync: call `finish`).
class OutputFile {
 public:
  /// Creates or truncates `path` (append: adds to its end). Throws FileError.
  explicit OutputFile(std::filesystem::path path, bool append = false);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  /// Writes all bytes; retries short writes and EINTR. Throws FileError with file and errno.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// As write, over what stands at `offset`; the place where `write` goes on stays.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  /// fsync: what has been written survives a crash. Throws FileError.
  void sync();
  /// fsync, then close. Throws FileError. The object cannot be written afterwards.
  void finish();
  /// Close without sync; errors are thrown. Nothing happens when it is closed already.
  void close();
  const std::filesystem::path& path() const { return path_; }

 private:
  template <class Call>
  void write_all(std::span<const std::byte> bytes, Call call);

  std::filesystem::path path_;
  int fd_ = -1;
};

/// Reads a whole file. Throws FileError (ENOENT and the like).
std::string read_file(const std::filesystem::path& path);

/// Makes `path` hold exactly what `write` writes, or leaves it as it was: temporary name beside it,
/// fsync, rename, fsync of the directory. A symbolic link at `path` is replaced, not followed.
/// Throws FileError for `path`, also where it is neither absent, a link nor a regular file; the
/// temporary file is then removed, as when `write` throws. When the last step alone failed, the new
/// bytes are in place, but a crash of the machine may still undo them.
void replace_file(const std::filesystem::path& path, const std::function<void(OutputFile&)>& write);

/// As replace_file, with these bytes.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

/// Renames durably: rename, then fsync of the parent directory (both, where they differ). Throws
/// FileError for `to`.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Creates the directory and its missing parents, and syncs every entry it made. What exists is
/// left alone. Throws FileError naming the first that failed.
void make_directories(const std::filesystem::path& path);

/// Makes the symbolic link `path` point to `target`, replacing atomically what was there.
void replace_symlink(const std::filesystem::path& target, const std::filesystem::path& path);

/// Opens /dev/null in place of those of standard input, output and error that are closed, so that
/// no file gets their number and what is printed. For the start of a program.
void open_standard_streams();

/// fsync of a directory's entry list; file systems that cannot do that (EINVAL) are let be. Throws
/// FileError.
void sync_directory(const std::filesystem::path& path);

}  // namespace bellows
