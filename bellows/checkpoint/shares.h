// A checkpoint that several processes write together, each one a part of every tensor list, on a
// file system that they share. Reading one is what it always is: the manifest lists all files, and
// tensors in slices are put together (slices.h). Internal: train/sharded_checkpoint.h has the
// processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "bellows/checkpoint/contents.h"
#include "bellows/checkpoint/manifest.h"

namespace bellows::checkpoint {

/// A stretch of rows of a tensor, or all of it.
struct ShareOfTensor {
  std::string tensor;
  int64_t row = 0, rows = -1;  // -1: whole
};

/// Who writes what. A pure function of names, shapes and types.
struct Shares {
  Manifest manifest;                                        // but for the digests
  std::map<std::string, std::vector<ShareOfTensor>> files;  // by file
  std::map<std::string, std::string> part_of;               // by file
  std::map<std::string, int64_t> writer;                    // by file: the rank
};

/// Spreads the weights and the optimizer's state over `ranks` by bytes; tensors are cut along their
/// first dimension where a share ends, but not into less than kLeastSlice. All other parts are
/// rank 0's. With one rank the files are those of a plain save.
Shares plan_shares(int64_t step, const Contents& contents, int64_t ranks);
inline constexpr uint64_t kLeastSlice = uint64_t{64} << 10;

/// Writes the files of `rank` into `directory`; their digests by name. Synced, and so is the
/// directory, but by rank 0, who commits. Throws FileError.
std::map<std::string, Digest> write_share(const std::filesystem::path& directory,
                                          const Contents& contents, const Shares& shares,
                                          int64_t rank);

/// The directory of one save, from before its first file to its name. Whoever has it saves and
/// removes alone in this process meanwhile. Without commit() everything is removed.
class SharedDirectory {
 public:
  /// A fresh hidden directory under root; left-overs of killed saves are removed. Throws FileError.
  SharedDirectory(std::filesystem::path root, int64_t step);
  ~SharedDirectory();
  SharedDirectory(const SharedDirectory&) = delete;
  SharedDirectory& operator=(const SharedDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Once all files are there: writes the manifest and gives the directory its name, as save()
  /// does. Throws FileError.
  std::filesystem::path commit(const Manifest& manifest);

 private:
  std::unique_lock<std::mutex> turn_;
  std::filesystem::path root_, path_;
  bool committed_ = false;
};

}  // namespace bellows::checkpoint
