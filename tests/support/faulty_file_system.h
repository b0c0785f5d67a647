// File systems that fail, are cut off at a call, or lose what was not synced.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "bellows/core/file.h"

namespace bellows::testing {

/// Calls `at_call` before the n-th call (from 0) reaches the system; a returned errno makes it
/// fail.
class FaultyFileSystem : public FileSystem {
 public:
  FaultyFileSystem(int n, std::function<int()> at_call) : n_(n), at_call_(std::move(at_call)) {}
  /// Whether the save had so many calls at all.
  bool reached() const { return calls_ > n_; }

  int open(const char* path, int flags, mode_t mode) override {
    return fault() ? -1 : FileSystem::open(path, flags, mode);
  }
  ssize_t write(int fd, const void* data, size_t bytes) override {
    return fault() ? -1 : FileSystem::write(fd, data, bytes);
  }
  ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) override {
    return fault() ? -1 : FileSystem::pwrite(fd, data, bytes, offset);
  }
  int fsync(int fd) override { return fault() ? -1 : FileSystem::fsync(fd); }
  int close(int fd) override {
    const bool failed = fault();
    const int code = errno;
    const int result = FileSystem::close(fd);
    errno = code;
    return failed ? -1 : result;
  }
  int rename(const char* from, const char* to) override {
    return fault() ? -1 : FileSystem::rename(from, to);
  }
  int unlink(const char* path) override { return fault() ? -1 : FileSystem::unlink(path); }
  int mkdir(const char* path, mode_t mode) override {
    return fault() ? -1 : FileSystem::mkdir(path, mode);
  }
  int symlink(const char* target, const char* path) override {
    return fault() ? -1 : FileSystem::symlink(target, path);
  }

 private:
  bool fault() {
    if (calls_++ != n_) return false;
    errno = at_call_();
    return errno != 0;
  }

  int n_;
  std::atomic<int> calls_ = 0;
  std::function<int()> at_call_;
};

/// Writes half of what it is asked to.
class ShortWrites : public FileSystem {
 public:
  ssize_t write(int fd, const void* data, size_t bytes) override {
    return FileSystem::write(fd, data, bytes > 1 ? bytes / 2 : bytes);
  }
  ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) override {
    return FileSystem::pwrite(fd, data, bytes > 1 ? bytes / 2 : bytes, offset);
  }
};

/// Forgets, when told to, everything that no fsync has made durable: the contents of files, and the
/// entries of directories.
class ForgetfulFileSystem : public FaultyFileSystem {
 public:
  ForgetfulFileSystem(int n, bool forgets_entries)
      : FaultyFileSystem(n,
                         [this] {
                           forget();
                           ::_exit(9);
                           return 0;
                         }),
        forgets_entries_(forgets_entries) {}

  int open(const char* path, int flags, mode_t mode) override {
    const std::lock_guard lock(mutex_);
    const bool made = (flags & O_CREAT) != 0 && !std::filesystem::exists(path);
    const int fd = FaultyFileSystem::open(path, flags, mode);
    paths_[fd] = path;
    if (made) entries_.push_back({.path = path});
    if ((flags & (O_CREAT | O_TRUNC)) == O_CREAT && !durable_.contains(path)) {
      durable_[path] = made ? 0 : std::filesystem::file_size(path);
    }
    return fd;
  }
  ssize_t write(int fd, const void* data, size_t bytes) override {
    const std::lock_guard lock(mutex_);
    contents_.push_back(paths_[fd]);
    return FaultyFileSystem::write(fd, data, bytes);
  }
  ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) override {
    const std::lock_guard lock(mutex_);
    contents_.push_back(paths_[fd]);
    return FaultyFileSystem::pwrite(fd, data, bytes, offset);
  }
  int fsync(int fd) override {
    const std::lock_guard lock(mutex_);
    const int result = FaultyFileSystem::fsync(fd);
    const std::filesystem::path path = paths_[fd];
    std::erase(contents_, path);
    if (std::filesystem::is_regular_file(path)) durable_[path] = std::filesystem::file_size(path);
    std::erase_if(entries_, [&](const Entry& entry) { return entry.path.parent_path() == path; });
    return result;
  }
  int rename(const char* from, const char* to) override {
    const std::lock_guard lock(mutex_);
    Entry entry{.path = to, .renamed_from = from};
    if (std::filesystem::is_symlink(to)) {
      entry.replaced_link = std::filesystem::read_symlink(to);
    } else if (std::filesystem::is_regular_file(to)) {
      entry.replaced_file = read_file(to);
      entry.replaced_file->resize(std::min(entry.replaced_file->size(), durable_size(to)));
    }
    const int result = FaultyFileSystem::rename(from, to);
    follow(from, to);
    entries_.push_back(std::move(entry));
    return result;
  }
  int mkdir(const char* path, mode_t mode) override {
    const std::lock_guard lock(mutex_);
    const int result = FaultyFileSystem::mkdir(path, mode);
    entries_.push_back({.path = path});
    return result;
  }

  void forget() {
    const std::lock_guard lock(mutex_);
    for (const std::filesystem::path& path : contents_) {
      if (!std::filesystem::exists(path)) continue;
      const auto size = std::filesystem::file_size(path);
      std::filesystem::resize_file(path, std::min<uintmax_t>(size, durable_[path]));
    }
    while (forgets_entries_ && !entries_.empty()) {
      const Entry entry = entries_.back();
      entries_.pop_back();
      if (entry.renamed_from.empty()) {
        std::filesystem::remove_all(entry.path);
        continue;
      }
      std::filesystem::rename(entry.path, entry.renamed_from);
      follow(entry.path, entry.renamed_from);
      if (!entry.replaced_link.empty()) {
        std::filesystem::create_symlink(entry.replaced_link, entry.path);
      }
      if (entry.replaced_file) std::ofstream(entry.path, std::ios::binary) << *entry.replaced_file;
    }
  }

 private:
  // An entry of a directory that is not durable yet.
  struct Entry {
    std::filesystem::path path;
    std::filesystem::path renamed_from = {};
    std::filesystem::path replaced_link = {};
    std::optional<std::string> replaced_file = std::nullopt;  // what of it was durable
  };

  size_t durable_size(const std::filesystem::path& path) const {
    const auto found = durable_.find(path);
    return found == durable_.end() ? SIZE_MAX : found->second;
  }

  // What is renamed, and what lies in a directory that is, has another path afterwards.
  void follow(const std::filesystem::path& from, const std::filesystem::path& to) {
    const auto moved = [&](const std::filesystem::path& path) {
      if (path == from) return to;
      return path.parent_path() == from ? to / path.filename() : path;
    };
    for (std::filesystem::path& path : contents_) path = moved(path);
    for (Entry& entry : entries_) {
      if (entry.path != from) entry.path = moved(entry.path);
    }
    std::map<std::filesystem::path, size_t> durable;
    for (const auto& [path, size] : durable_) {
      if (path != to) durable[moved(path)] = size;
    }
    durable_ = std::move(durable);
  }

  std::recursive_mutex mutex_;  // a fault forgets in the middle of a call
  bool forgets_entries_;
  std::map<int, std::filesystem::path> paths_;
  std::vector<std::filesystem::path> contents_;
  std::vector<Entry> entries_;
  std::map<std::filesystem::path, size_t> durable_;  // bytes of files that have been synced
};

}  // namespace bellows::testing
