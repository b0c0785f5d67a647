#include "bellows/core/file.h"

#include <cerrno>
#include <functional>
#include <map>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows {
namespace {

namespace fs = std::filesystem;

/// Counts calls and, where told, makes one fail, all start with EINTR, or writes come out short.
class FaultyFileSystem : public FileSystem {
 public:
  int calls = 0;
  int failing_call = -1;
  int failure = ENOSPC;
  bool interrupt_each = false;
  size_t longest_write = SIZE_MAX;
  int open_files = 0;

  int open(const char* path, int flags, mode_t mode) override {
    const int fd = faults() ? -1 : FileSystem::open(path, flags, mode);
    open_files += fd != -1;
    return fd;
  }
  ssize_t write(int fd, const void* data, size_t bytes) override {
    return faults() ? -1 : FileSystem::write(fd, data, std::min(bytes, longest_write));
  }
  int fsync(int fd) override { return faults() ? -1 : FileSystem::fsync(fd); }
  // As in Linux, a close that reports an error, EINTR included, has closed all the same.
  int close(int fd) override {
    --open_files;
    if (FileSystem::close(fd) == -1) {
      ADD_FAILURE() << "closed twice";
      return -1;
    }
    interrupted_ = false;
    return faults() ? -1 : 0;
  }
  int rename(const char* from, const char* to) override {
    return faults() ? -1 : FileSystem::rename(from, to);
  }
  int mkdir(const char* path, mode_t mode) override {
    return faults() ? -1 : FileSystem::mkdir(path, mode);
  }
  int symlink(const char* target, const char* path) override {
    return faults() ? -1 : FileSystem::symlink(target, path);
  }

 private:
  bool faults() {
    if (interrupt_each) {
      interrupted_ = !interrupted_;
      errno = EINTR;
      if (interrupted_) return true;
    }
    errno = failure;
    return calls++ == failing_call;
  }
  bool interrupted_ = false;
};

/// A machine that stops at a chosen call, and what is then on its disk: a file's bytes as of its
/// last fsync, the directory's entries as of its last fsync, or as of now (a system may write them
/// early). Entries made before this object count as synced.
class CrashingFileSystem : public FileSystem {
 public:
  using Files = std::map<std::string, std::string>;

  CrashingFileSystem(fs::path directory, int calls_before_crash)
      : directory_(std::move(directory)), calls_left_(calls_before_crash), synced_(entries()) {
    for (const auto& [name, inode] : synced_) bytes_[inode] = read_file(directory_ / name);
  }

  int open(const char* path, int flags, mode_t mode) override {
    return stopped() ? -1 : FileSystem::open(path, flags, mode);
  }
  ssize_t write(int fd, const void* data, size_t bytes) override {
    return stopped() ? -1 : FileSystem::write(fd, data, bytes);
  }
  int fsync(int fd) override {
    if (stopped()) return -1;
    struct stat status = {};
    fstat(fd, &status);
    if (status.st_ino == inode_of(directory_)) {
      synced_ = entries();
    } else if (S_ISREG(status.st_mode)) {
      bytes_[status.st_ino] = read_file("/proc/self/fd/" + std::to_string(fd));
    }
    return 0;
  }
  int close(int fd) override {
    FileSystem::close(fd);
    return stopped() ? -1 : 0;
  }
  int rename(const char* from, const char* to) override {
    return stopped() ? -1 : FileSystem::rename(from, to);
  }
  int unlink(const char* path) override { return stopped() ? -1 : FileSystem::unlink(path); }

  Files after_crash() const { return with_bytes(synced_); }
  Files after_crash_with_early_entries() const { return with_bytes(entries()); }

 private:
  using Entries = std::map<std::string, ino_t>;

  static ino_t inode_of(const fs::path& path) {
    struct stat status = {};
    stat(path.c_str(), &status);
    return status.st_ino;
  }
  bool stopped() {
    errno = EIO;
    return calls_left_-- <= 0;
  }
  Entries entries() const {
    Entries found;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      found[entry.path().filename()] = inode_of(entry.path());
    }
    return found;
  }
  Files with_bytes(const Entries& entries) const {
    Files files;
    for (const auto& [name, inode] : entries) {
      const auto found = bytes_.find(inode);
      files[name] = found == bytes_.end() ? "(never synced)" : found->second;
    }
    return files;
  }

  fs::path directory_;
  int calls_left_;
  Entries synced_;
  std::map<ino_t, std::string> bytes_;
};

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    std::string name = (fs::temp_directory_path() / "bellows-file-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~FileTest() override { fs::remove_all(directory_); }

  fs::path at(const std::string& name) const { return directory_ / name; }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      found.push_back(entry.path().filename());
    }
    return found;
  }

  fs::path directory_;
};

template <class Fn>
FileError error_of(Fn fn) {
  try {
    fn();
  } catch (const FileError& error) {
    return error;
  }
  ADD_FAILURE() << "no FileError";
  return FileError("", "", 0);
}

// Runs `action` with its first, second, … call failing, until none is left to fail. `check` sees
// whether it threw. Descriptors must not leak.
void fail_each_call(const std::function<void()>& prepare, const std::function<void()>& action,
                    const std::function<void(const FileError*)>& check) {
  for (int failing = 0;; ++failing) {
    SCOPED_TRACE(testing::Message() << "call " << failing << " fails");
    prepare();
    FaultyFileSystem faulty;
    faulty.failing_call = failing;
    try {
      const ScopedFileSystem scope(faulty);
      action();
      check(nullptr);
    } catch (const FileError& error) {
      EXPECT_EQ(error.code(), ENOSPC);
      check(&error);
    }
    EXPECT_EQ(faulty.open_files, 0);
    if (faulty.calls <= failing) return;
  }
}

TEST_F(FileTest, WrittenBytesAreReadBack) {
  std::string bytes = "binary \0 and text\n";
  bytes.resize(300000, 'x');
  OutputFile file(at("a"));
  file.write(bytes);
  file.write(std::as_bytes(std::span("yz", 2)));
  file.write(std::string_view());
  file.finish();
  EXPECT_EQ(read_file(at("a")), bytes + "yz");
  EXPECT_EQ(file.path(), at("a"));
}

TEST_F(FileTest, OpeningTruncatesAndAppendingDoesNot) {
  OutputFile(at("a")).write("long old text");
  OutputFile(at("a")).write("new");
  EXPECT_EQ(read_file(at("a")), "new");
  OutputFile(at("a"), /*append=*/true).write(" and more");
  EXPECT_EQ(read_file(at("a")), "new and more");
}

TEST_F(FileTest, OpenInAMissingDirectoryNamesTheFile) {
  const FileError error = error_of([&] { OutputFile(at("no/a")); });
  EXPECT_EQ(error.code(), ENOENT);
  EXPECT_EQ(error.what(), at("no/a").string() + ": open for writing: No such file or directory");
}

TEST_F(FileTest, ShortAndInterruptedWritesAreRetried) {
  FaultyFileSystem faulty;
  faulty.interrupt_each = true;
  faulty.longest_write = 3;
  {
    const ScopedFileSystem scope(faulty);
    OutputFile file(at("a"));
    file.write("twelve bytes");
    file.finish();
  }
  EXPECT_EQ(read_file(at("a")), "twelve bytes");
  EXPECT_EQ(faulty.open_files, 0);
}

TEST_F(FileTest, WriteThatMakesNoProgressIsAnErrorNotALoop) {
  FaultyFileSystem faulty;
  faulty.longest_write = 0;
  const ScopedFileSystem scope(faulty);
  EXPECT_EQ(error_of([&] { OutputFile(at("a")).write("x"); }).code(), ENOSPC);
}

TEST_F(FileTest, EachFailingCallOfAnOutputFileIsReported) {
  fail_each_call([] {},
                 [&] {
                   OutputFile file(at("a"));
                   file.write("x");
                   file.finish();
                 },
                 [&](const FileError* error) {
                   if (error != nullptr) {
                     EXPECT_EQ(error->path(), at("a"));
                   }
                 });
}

TEST_F(FileTest, FullDeviceIsReportedWithFileAndReason) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  EXPECT_STREQ(error_of([] { OutputFile("/dev/full").write("x"); }).what(),
               "/dev/full: write: No space left on device");
}

TEST_F(FileTest, FinishSyncsAndCloseDoesNot) {
  class CountSyncs : public FileSystem {
   public:
    int fsync(int fd) override { return ++syncs, FileSystem::fsync(fd); }
    int syncs = 0;
  } counting;
  const ScopedFileSystem scope(counting);
  OutputFile(at("a")).finish();
  EXPECT_EQ(counting.syncs, 1);
  OutputFile(at("b")).close();
  EXPECT_EQ(counting.syncs, 1);
}

TEST_F(FileTest, FinishedFileCannotBeWritten) {
  OutputFile file(at("a"));
  file.finish();
  EXPECT_EQ(error_of([&] { file.write("x"); }).code(), EBADF);
  EXPECT_EQ(error_of([&] { file.finish(); }).code(), EBADF);
  EXPECT_NO_THROW(file.close());
}

TEST_F(FileTest, MovedFromFileIsClosedOnlyOnce) {
  FaultyFileSystem counting;
  {
    const ScopedFileSystem scope(counting);
    OutputFile first(at("a"));
    OutputFile second(std::move(first));
    second.write("x");
  }
  EXPECT_EQ(counting.open_files, 0);
  EXPECT_EQ(read_file(at("a")), "x");
}

TEST_F(FileTest, ReadGivesFilesOfUnknownSize) {
  EXPECT_NE(read_file("/proc/self/status").find("VmPeak"), std::string::npos);
  OutputFile(at("empty")).finish();
  EXPECT_EQ(read_file(at("empty")), "");
}

TEST_F(FileTest, ReadErrorsNameTheFile) {
  const FileError missing = error_of([&] { read_file(at("no")); });
  EXPECT_EQ(missing.what(), at("no").string() + ": open: No such file or directory");
  EXPECT_EQ(missing.code(), ENOENT);
  EXPECT_EQ(error_of([&] { read_file(directory_); }).code(), EISDIR);
}

TEST_F(FileTest, AtomicWriteReplacesAndLeavesNoOtherFile) {
  write_file_atomically(at("a"), "old");
  write_file_atomically(at("a"), "new");
  EXPECT_EQ(read_file(at("a")), "new");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(FileTest, AtomicWriteThatFailsKeepsTheOldBytesAndRemovesItsTemporary) {
  fail_each_call([&] { OutputFile(at("a")).write("old"); },
                 [&] { write_file_atomically(at("a"), "new"); },
                 [&](const FileError* error) {
                   // An error from syncing the directory comes after the new bytes are in place.
                   const bool replaced = error == nullptr || error->path() != at("a");
                   if (replaced && error != nullptr) {
                     EXPECT_EQ(error->path(), directory_);
                   }
                   EXPECT_EQ(read_file(at("a")), replaced ? "new" : "old");
                   EXPECT_EQ(names(), std::vector<std::string>{"a"});
                 });
}

TEST_F(FileTest, AtomicWriteErrorNamesTheFileAskedFor) {
  const FileError error = error_of([&] { write_file_atomically(at("no/a"), "x"); });
  EXPECT_EQ(error.what(),
            at("no/a").string() +
                ": open for writing (of its temporary file): No such file or directory");
}

TEST_F(FileTest, AtomicWriteSurvivesInterruptedCallsAndShortWrites) {
  FaultyFileSystem faulty;
  faulty.interrupt_each = true;
  faulty.longest_write = 1;
  {
    const ScopedFileSystem scope(faulty);
    write_file_atomically(at("a"), "new");
  }
  EXPECT_EQ(read_file(at("a")), "new");
  EXPECT_EQ(faulty.open_files, 0);
}

TEST_F(FileTest, AtomicWriteLeavesOldOrNewBytesWhereverTheMachineStops) {
  bool finished = false;
  for (int calls = 0; !finished; ++calls) {
    SCOPED_TRACE(testing::Message() << "the machine stops after " << calls << " calls");
    fs::remove_all(directory_);
    fs::create_directory(directory_);
    OutputFile(at("a")).write("old");
    CrashingFileSystem crashing(directory_, calls);
    const ScopedFileSystem scope(crashing);
    try {
      write_file_atomically(at("a"), "new");
      finished = true;
    } catch (const FileError&) {
    }
    for (auto files : {crashing.after_crash(), crashing.after_crash_with_early_entries()}) {
      EXPECT_TRUE(files["a"] == "old" || files["a"] == "new") << files["a"];
      if (finished) {
        EXPECT_EQ(files["a"], "new");
      }
    }
  }
}

TEST_F(FileTest, DurableRenameIsOnDiskWhenItReturns) {
  OutputFile(at("a")).write("x");
  CrashingFileSystem crashing(directory_, 1000);
  const ScopedFileSystem scope(crashing);
  rename_durably(at("a"), at("b"));
  EXPECT_EQ(crashing.after_crash(), (CrashingFileSystem::Files{{"b", "x"}}));
}

TEST_F(FileTest, DurableRenameAcrossDirectoriesSyncsBoth) {
  make_directories(at("d/e"));
  OutputFile(at("d/e/a")).write("x");
  CrashingFileSystem crashing(at("d/e"), 1000);
  const ScopedFileSystem scope(crashing);
  rename_durably(at("d/e/a"), at("d/b"));
  EXPECT_EQ(crashing.after_crash(), CrashingFileSystem::Files{});
  EXPECT_EQ(read_file(at("d/b")), "x");
}

TEST_F(FileTest, RenameErrorNamesBothFiles) {
  const FileError error = error_of([&] { rename_durably(at("a"), at("b")); });
  EXPECT_EQ(error.what(),
            at("b").string() + ": rename from " + at("a").string() + ": No such file or directory");
}

TEST_F(FileTest, DirectoriesAreMadeWithTheirParents) {
  make_directories(at("d/e/f/"));
  EXPECT_TRUE(fs::is_directory(at("d/e/f")));
  EXPECT_NO_THROW(make_directories(at("d/e/f")));
  EXPECT_NO_THROW(make_directories("."));
  EXPECT_NO_THROW(make_directories(""));
}

TEST_F(FileTest, DirectoryBelowAFileNamesTheFile) {
  OutputFile(at("a")).write("x");
  const FileError error = error_of([&] { make_directories(at("a/b/c")); });
  EXPECT_EQ(error.what(), at("a").string() + ": mkdir: Not a directory");
}

TEST_F(FileTest, EachFailingCallOfMakeDirectoriesIsReported) {
  fail_each_call([&] { fs::remove_all(at("d")); }, [&] { make_directories(at("d/e")); },
                 [&](const FileError* error) {
                   if (error == nullptr) {
                     EXPECT_TRUE(fs::is_directory(at("d/e")));
                   }
                 });
}

TEST_F(FileTest, EveryNewDirectoryIsSyncedIntoItsParent) {
  class SyncedDirectories : public FileSystem {
   public:
    int open(const char* path, int flags, mode_t mode) override {
      opened.push_back(path);
      return FileSystem::open(path, flags, mode);
    }
    std::vector<fs::path> opened;
  } watching;
  const ScopedFileSystem scope(watching);
  make_directories(at("d/e"));
  EXPECT_EQ(watching.opened, (std::vector<fs::path>{directory_, at("d")}));
}

TEST_F(FileTest, SymlinkIsMadeAndReplaced) {
  replace_symlink("step-1", at("last"));
  EXPECT_EQ(fs::read_symlink(at("last")), "step-1");
  replace_symlink("step-2", at("last"));
  EXPECT_EQ(fs::read_symlink(at("last")), "step-2");
  EXPECT_EQ(names(), std::vector<std::string>{"last"});
}

TEST_F(FileTest, SymlinkIsOldOrNewWhicheverCallFails) {
  fail_each_call([&] { replace_symlink("old", at("last")); },
                 [&] { replace_symlink("new", at("last")); },
                 [&](const FileError* error) {
                   const bool replaced = error == nullptr || error->path() == directory_;
                   EXPECT_EQ(fs::read_symlink(at("last")), replaced ? "new" : "old");
                   EXPECT_EQ(names(), std::vector<std::string>{"last"});
                 });
}

TEST_F(FileTest, SymlinkDoesNotReplaceADirectory) {
  make_directories(at("last"));
  EXPECT_EQ(error_of([&] { replace_symlink("step-1", at("last")); }).code(), EISDIR);
  EXPECT_EQ(names(), std::vector<std::string>{"last"});
}

TEST_F(FileTest, SyncOfAMissingDirectoryNamesIt) {
  const FileError error = error_of([&] { sync_directory(at("no")); });
  EXPECT_EQ(error.what(), at("no").string() + ": open directory: No such file or directory");
}

TEST_F(FileTest, DirectoryOnAFileSystemWithoutDirectorySyncIsLetBe) {
  class FailingSync : public FileSystem {
   public:
    int fsync(int) override { return errno = code, -1; }
    int code = EINVAL;
  } failing;
  const ScopedFileSystem scope(failing);
  EXPECT_NO_THROW(sync_directory(directory_));
  failing.code = EIO;
  EXPECT_EQ(error_of([&] { sync_directory(directory_); }).code(), EIO);
}

}  // namespace
}  // namespace bellows
