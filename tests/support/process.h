// Running programs from tests.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

namespace bellows::testing {

struct ProcessResult {
  int exit_code = -1;  // 128 + signal when killed by one
  std::string out;
  std::string err;
};

/// A child process; killed and reaped on destruction.
class Process {
 public:
  /// Starts `words[0]` with the rest as arguments; `environment` is added to this process's. Output
  /// goes to files below the tests' temporary folder.
  explicit Process(const std::vector<std::string>& words,
                   const std::map<std::string, std::string>& environment = {},
                   const std::filesystem::path& directory = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits at most `limit`; fails the test and kills the process when it does not end.
  ProcessResult wait(std::chrono::seconds limit = std::chrono::seconds(240));
  /// What it has written to standard output so far.
  std::string out_so_far() const;
  std::string err_so_far() const;
  bool running();

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  bool reaped_ = false;
  std::filesystem::path out_, err_;
};

/// Runs to the end.
ProcessResult run(const std::vector<std::string>& words,
                  const std::map<std::string, std::string>& environment = {},
                  const std::filesystem::path& directory = {});

/// An empty folder of its own, removed on destruction.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace bellows::testing
