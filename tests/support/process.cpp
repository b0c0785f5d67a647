#include "tests/support/process.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

namespace bellows::testing {
namespace fs = std::filesystem;
namespace {

std::string contents(const fs::path& path) {
  std::ifstream input(path, std::ios::binary);
  std::ostringstream text;
  text << input.rdbuf();
  return text.str();
}

fs::path new_path(const std::string& kind) {
  std::string name = (fs::path(::testing::TempDir()) / ("bellows-" + kind + "-XXXXXX")).string();
  const int fd = mkstemp(name.data());
  if (fd < 0) throw std::runtime_error("mkstemp failed: " + name);
  close(fd);
  return name;
}

void open_as(int target, const fs::path& path, int flags) {
  const int fd = open(path.c_str(), flags, 0666);
  if (fd < 0 || dup2(fd, target) < 0) _exit(126);
}

}  // namespace

Process::Process(const std::vector<std::string>& words,
                 const std::map<std::string, std::string>& environment, const fs::path& directory)
    : out_(new_path("out")), err_(new_path("err")) {
  std::vector<char*> argv;
  for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    open_as(STDIN_FILENO, "/dev/null", O_RDONLY);
    open_as(STDOUT_FILENO, out_, O_WRONLY | O_TRUNC);
    open_as(STDERR_FILENO, err_, O_WRONLY | O_TRUNC);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    if (!directory.empty() && chdir(directory.c_str()) != 0) _exit(126);
    execvp(argv[0], argv.data());
    _exit(127);
  }
}

Process::~Process() {
  if (!reaped_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
  }
  std::error_code ignored;
  fs::remove(out_, ignored);
  fs::remove(err_, ignored);
}

void Process::signal(int number) const {
  kill(pid_, number);
}

bool Process::running() {
  if (!reaped_ && waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
  return !reaped_;
}

std::string Process::out_so_far() const {
  return contents(out_);
}

std::string Process::err_so_far() const {
  return contents(err_);
}

ProcessResult Process::wait(std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (running()) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "process " << pid_ << " did not end within " << limit.count()
                    << " s; its output: " << contents(out_) << contents(err_);
      kill(pid_, SIGKILL);
      waitpid(pid_, &status_, 0);
      reaped_ = true;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  const int code = WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
  return {code, contents(out_), contents(err_)};
}

ProcessResult run(const std::vector<std::string>& words,
                  const std::map<std::string, std::string>& environment,
                  const fs::path& directory) {
  return Process(words, environment, directory).wait();
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::path(::testing::TempDir()) / "bellows-test-XXXXXX").string();
  if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed: " + name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace bellows::testing
