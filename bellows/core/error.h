// The error tree. Everything Bellows throws on its own account derives from bellows::Error; errors
// of LibTorch (c10::Error) pass through unchanged. Messages say what failed, what was found, what
// was expected, and what to do next; they are complete sentences a program can show to its user as
// they are.
#pragma once

#if defined(__GNUC__) && !defined(__EXCEPTIONS)
#error "Bellows needs C++ exceptions: compile without -fno-exceptions"
#endif

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace bellows {

/// Base of all errors thrown by Bellows.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller passed something invalid (argument, option, configuration value). Thrown before any
/// side effect, so that the call can be repeated with a corrected value.
class ValueError : public Error {
 public:
  using Error::Error;
};

/// The machine lacks something: a device, a driver, a library, data, a writable directory.
class EnvironmentError : public Error {
 public:
  using Error::Error;
};

/// A file exists but does not hold what its format promises. `path()` is the file.
class CorruptFileError : public EnvironmentError {
 public:
  /// The message becomes "<path>: <what>".
  CorruptFileError(const std::filesystem::path& path, const std::string& what)
      : EnvironmentError(path.string() + ": " + what), path_(path) {}
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// An operating-system call on a file failed. `code()` is its errno.
class FileError : public EnvironmentError {
 public:
  /// The message becomes "<path>: <operation>: <strerror(code)>".
  FileError(const std::filesystem::path& path, const std::string& operation, int code);
  const std::filesystem::path& path() const { return path_; }
  const std::string& operation() const { return operation_; }
  int code() const { return code_; }

 private:
  std::filesystem::path path_;
  std::string operation_;
  int code_;
};

/// Something that had a deadline did not happen in time.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// A collective could not be done because of other ranks. `ranks()` are those, sorted: not heard
/// from, or not in the collective. Empty where it cannot be said which.
class RankError : public Error {
 public:
  RankError(const std::string& what, std::vector<int64_t> ranks)
      : Error(what), ranks_(std::move(ranks)) {}
  const std::vector<int64_t>& ranks() const { return ranks_; }

 private:
  std::vector<int64_t> ranks_;
};

/// Training produced a value it cannot go on with (NaN or infinity in the loss).
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

}  // namespace bellows
