// A save that fails, is killed, or loses what was not synced, at each of its calls in turn.
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <gmock/gmock.h>
#include <map>
#include <sys/wait.h>
#include <unistd.h>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/directory.h"
#include "bellows/core/file.h"
#include "tests/checkpoint/fixture.h"

namespace bellows::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Calls `at_call` before the n-th call (from 0) reaches the system; a returned errno makes it fail.
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
  int calls_ = 0;
  std::function<int()> at_call_;
};

// Writes at most one byte less than asked for.
class ShortWrites : public FileSystem {
 public:
  ssize_t write(int fd, const void* data, size_t bytes) override {
    return FileSystem::write(fd, data, bytes > 1 ? bytes / 2 : bytes);
  }
};

// Forgets, when told to, everything that no fsync has made durable: the contents of files, and the
// entries of directories.
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
    const bool made = (flags & O_CREAT) != 0 && !fs::exists(path);
    const int fd = FaultyFileSystem::open(path, flags, mode);
    paths_[fd] = path;
    if (made) entries_.push_back({.path = path});
    return fd;
  }
  ssize_t write(int fd, const void* data, size_t bytes) override {
    contents_.push_back(paths_[fd]);
    return FaultyFileSystem::write(fd, data, bytes);
  }
  int fsync(int fd) override {
    const int result = FaultyFileSystem::fsync(fd);
    std::erase(contents_, paths_[fd]);
    std::erase_if(entries_,
                  [&](const Entry& entry) { return entry.path.parent_path() == paths_[fd]; });
    return result;
  }
  int rename(const char* from, const char* to) override {
    const fs::path replaced = fs::is_symlink(to) ? fs::read_symlink(to) : fs::path();
    const int result = FaultyFileSystem::rename(from, to);
    follow(from, to);
    entries_.push_back({.path = to, .renamed_from = from, .replaced_link = replaced});
    return result;
  }
  int mkdir(const char* path, mode_t mode) override {
    const int result = FaultyFileSystem::mkdir(path, mode);
    entries_.push_back({.path = path});
    return result;
  }

  void forget() {
    for (const fs::path& path : contents_) {
      if (fs::exists(path)) fs::resize_file(path, 0);
    }
    while (forgets_entries_ && !entries_.empty()) {
      const Entry entry = entries_.back();
      entries_.pop_back();
      if (entry.renamed_from.empty()) {
        fs::remove_all(entry.path);
        continue;
      }
      fs::rename(entry.path, entry.renamed_from);
      follow(entry.path, entry.renamed_from);
      if (!entry.replaced_link.empty()) fs::create_symlink(entry.replaced_link, entry.path);
    }
  }

 private:
  // An entry of a directory that is not durable yet.
  struct Entry {
    fs::path path;
    fs::path renamed_from = {};
    fs::path replaced_link = {};
  };

  // What lies in a directory has another path after the directory was renamed.
  void follow(const fs::path& from, const fs::path& to) {
    const auto move = [&](fs::path& path) {
      if (path.parent_path() == from) path = to / path.filename();
    };
    for (fs::path& path : contents_) move(path);
    for (Entry& entry : entries_) move(entry.path);
  }

  bool forgets_entries_;
  std::map<int, fs::path> paths_;
  std::vector<fs::path> contents_;
  std::vector<Entry> entries_;
};

// Every test runs twice: the interrupted save is of a new step, or replaces the one that is there.
class CheckpointFaultTest : public CheckpointTest, public ::testing::WithParamInterface<int64_t> {
 protected:
  // Starts from a root that holds step 1 with the value 1.
  void begin() const {
    fs::remove_all(root());
    save_run(1, 1);
  }
  void interrupted_save() const { save_run(GetParam(), 2); }

  // The old or the new checkpoint is found, whole, by a reader that repairs nothing; then a further
  // save succeeds, and nothing is left over.
  void expect_sound(int n) const {
    const auto found = latest(root());
    ASSERT_TRUE(found.has_value()) << "call " << n;
    const FakeRun run = load_run(*found);
    EXPECT_TRUE(run.is(1) || run.is(2)) << "call " << n;
    for (const fs::path& directory : candidates(root())) {
      if (directory.filename().string().starts_with('.')) continue;
      EXPECT_EQ(fault_of(directory), "") << "call " << n;
      const FakeRun whole = load_run(directory);
      EXPECT_TRUE(whole.is(1) || whole.is(2)) << "call " << n << ": " << directory;
    }
    save_run(3, 3);
    EXPECT_TRUE(load_run(root() / "last").is(3)) << "call " << n;
    EXPECT_GE(list(root()).size(), 2U) << "call " << n;
    for (const std::string& name : entries()) {
      EXPECT_THAT(name, Not(HasSubstr(".step"))) << "call " << n;
    }
  }

  // In a process of its own, which ends at call n; false when the save was over before.
  // Otherwise `after` is called at its end.
  bool save_is_killed(
      FileSystem& faulty, const std::function<void()>& after = [] {}) const {
    const pid_t child = ::fork();
    if (child == 0) {
      const ScopedFileSystem scope(faulty);
      interrupted_save();
      after();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    return WEXITSTATUS(status) == 9;
  }
};

TEST_P(CheckpointFaultTest, EveryFailingCallIsReportedAndLeavesAWholeCheckpoint) {
  for (const int code : {ENOSPC, EIO}) {
    int n = 0;
    for (bool reached = true; reached; ++n) {
      begin();
      FaultyFileSystem faulty(n, [&] { return code; });
      std::string error;
      {
        const ScopedFileSystem scope(faulty);
        error = error_of([&] { interrupted_save(); });
      }
      reached = faulty.reached();
      if (reached && error != "no error") {
        EXPECT_THAT(error, HasSubstr(root().string())) << "call " << n;
        EXPECT_THAT(error, HasSubstr(::strerror(code))) << "call " << n;
      }
      EXPECT_EQ(error_of([&] { load_run(root() / "last"); }), "no error") << "call " << n;
      expect_sound(n);
    }
    EXPECT_GT(n, 15);
  }
}

TEST_P(CheckpointFaultTest, InterruptedCallsAreRepeated) {
  int n = 0;
  for (bool reached = true; reached; ++n) {
    begin();
    FaultyFileSystem faulty(n, [] { return EINTR; });
    {
      const ScopedFileSystem scope(faulty);
      EXPECT_EQ(error_of([&] { interrupted_save(); }), "no error") << "call " << n;
    }
    reached = faulty.reached();
    EXPECT_TRUE(load_run(root() / "last").is(2)) << "call " << n;
  }
}

TEST_P(CheckpointFaultTest, ShortWritesAreContinued) {
  begin();
  ShortWrites halves;
  {
    const ScopedFileSystem scope(halves);
    interrupted_save();
  }
  EXPECT_TRUE(load_run(root() / "last").is(2));
}

TEST_P(CheckpointFaultTest, ProcessKilledAtAnyCallLeavesAWholeCheckpoint) {
  int n = 0;
  for (bool killed = true; killed; ++n) {
    begin();
    FaultyFileSystem faulty(n, []() -> int { ::_exit(9); });
    killed = save_is_killed(faulty);
    expect_sound(n);
  }
  EXPECT_GT(n, 15);
}

TEST_P(CheckpointFaultTest, MachineStoppedAtAnyCallLeavesAWholeCheckpoint) {
  for (const bool forgets_entries : {false, true}) {
    int n = 0;
    for (bool killed = true; killed; ++n) {
      begin();
      ForgetfulFileSystem forgetful(n, forgets_entries);
      killed = save_is_killed(forgetful, [&] { forgetful.forget(); });
      EXPECT_TRUE(killed || load_run(latest(root()).value()).is(2)) << "it had been saved";
      expect_sound(n);
    }
    EXPECT_GT(n, 15);
  }
}

INSTANTIATE_TEST_SUITE_P(, CheckpointFaultTest, ::testing::Values(1, 2), [](const auto& info) {
  return info.param == 1 ? std::string("SameStep") : std::string("NewStep");
});

TEST_F(CheckpointTest, LeftOversOfLivingProcessesAreKept) {
  save_run(1, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  std::array<char, 256> host = {};
  ::gethostname(host.data(), host.size() - 1);
  std::string name = host.data();
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == '.'; }, '_');
  const fs::path living =
      root() / (".step-00000009.tmp-" + name + "-" + std::to_string(child) + "-0123");
  fs::create_directory(living);
  save_run(2, 2);
  EXPECT_TRUE(fs::exists(living));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  save_run(3, 3);
  EXPECT_FALSE(fs::exists(living));
}

}  // namespace
}  // namespace bellows::checkpoint
