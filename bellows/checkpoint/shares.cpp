#include "bellows/checkpoint/shares.h"

#include <algorithm>
#include <cstdio>

#include "bellows/checkpoint/directory.h"
#include "bellows/checkpoint/safetensors_io.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;

// "model.safetensors", and of several "model-00002-of-00004.safetensors".
std::string file_name(const std::string& part, int64_t rank, int64_t ranks) {
  if (ranks == 1) return part + ".safetensors";
  char number[64];
  std::snprintf(number, sizeof number, "-%05ld-of-%05ld", static_cast<long>(rank + 1),
                static_cast<long>(ranks));
  return part + number + ".safetensors";
}

// Puts one part's tensors into files, the first rank's until it has its share of the bytes, then
// the next one's.
class Spreading {
 public:
  Spreading(Shares& shares, std::string part, const NamedTensors& tensors, int64_t ranks)
      : shares_(shares), part_(std::move(part)), ranks_(ranks) {
    uint64_t bytes = 0;
    for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();
    share_ = (bytes + static_cast<uint64_t>(ranks) - 1) / static_cast<uint64_t>(ranks);
    for (const auto& [name, tensor] : tensors) add(name, tensor);
    if (tensors.empty()) use_file();
  }

 private:
  void add(const std::string& name, const at::Tensor& tensor) {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    const uint64_t row_bytes = rows == 0 ? 0 : tensor.nbytes() / static_cast<uint64_t>(rows);
    SlicedTensor sliced{.shape = tensor.sizes().vec(), .slices = {}};
    for (int64_t row = 0; row < std::max<int64_t>(rows, 1);) {
      const int64_t count = rows_that_fit(rows - row, row_bytes);
      const std::string& file = use_file();
      const bool whole = row == 0 && count == rows;
      shares_.files[file].push_back({name, row, whole ? -1 : count});
      if (!whole) {
        std::vector<int64_t> offset(static_cast<size_t>(tensor.dim()), 0);
        offset[0] = row;
        sliced.slices.push_back({file, offset});
      }
      used_ += row_bytes * static_cast<uint64_t>(count);
      row += std::max<int64_t>(count, 1);
      // A share with a crumb of room is full.
      const uint64_t crumb = std::min(kLeastSlice, share_ / 2);
      while (used_ + crumb >= end_of_share() && rank_ + 1 < ranks_) ++rank_;
    }
    if (!sliced.slices.empty()) part().sliced[name] = std::move(sliced);
  }

  // Of `rows` that are left; no cut that would leave a crumb.
  int64_t rows_that_fit(int64_t rows, uint64_t row_bytes) const {
    if (rank_ + 1 == ranks_ || row_bytes == 0) return rows;
    const uint64_t room = end_of_share() - used_;
    const uint64_t all = row_bytes * static_cast<uint64_t>(rows);
    if (all <= room || all - room < kLeastSlice) return rows;
    return std::min<int64_t>(rows, static_cast<int64_t>((room + row_bytes - 1) / row_bytes));
  }

  const std::string& use_file() {
    auto& files = part().files;
    std::string name = file_name(part_, rank_, ranks_);
    if (files.empty() || files.back() != name) {
      files.push_back(name);
      shares_.manifest.files[name] = {};
      shares_.part_of[name] = part_;
      shares_.writer[name] = rank_;
      shares_.files[name];
    }
    return files.back();
  }
  // In bytes of all tensors, from the first on.
  uint64_t end_of_share() const { return share_ * static_cast<uint64_t>(rank_ + 1); }
  Part& part() { return shares_.manifest.parts[part_]; }

  Shares& shares_;
  const std::string part_;
  const int64_t ranks_;
  int64_t rank_ = 0;
  uint64_t share_ = 0, used_ = 0;
};

}  // namespace

Shares plan_shares(int64_t step, const Contents& contents, int64_t ranks) {
  Shares shares;
  shares.manifest.step = step;
  for (const auto& [name, part] : contents) {
    shares.manifest.parts[name].state = part.state;
    if (part.tensors.empty() && name != kModelPart) continue;
    const bool spread = name == kModelPart || name == "optimizer";
    Spreading(shares, name, part.tensors, spread ? ranks : 1);
  }
  return shares;
}

std::map<std::string, Digest> write_share(const fs::path& directory, const Contents& contents,
                                          const Shares& shares, int64_t rank) {
  std::map<std::string, Digest> digests;
  for (const auto& [file, pieces] : shares.files) {
    if (shares.writer.at(file) != rank) continue;
    const NamedTensors& all = contents.at(shares.part_of.at(file)).tensors;
    const std::map<std::string, at::Tensor> by_name(all.begin(), all.end());
    NamedTensors tensors;
    for (const ShareOfTensor& piece : pieces) {
      const at::Tensor& whole = by_name.at(piece.tensor);
      tensors.emplace_back(piece.tensor,
                           piece.rows < 0 ? whole : whole.narrow(0, piece.row, piece.rows));
    }
    digests[file] = write_safetensors_hashed(directory / file, tensors);
  }
  if (rank != 0 && !digests.empty()) sync_directory(directory);
  return digests;
}

SharedDirectory::SharedDirectory(fs::path root, int64_t step)
    : turn_(take_turn()), root_(std::move(root)) {
  make_directories(root_);
  collect_left_overs(root_);
  path_ = hidden_name(root_, step, "tmp");
  make_directory(path_);
}

SharedDirectory::~SharedDirectory() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(path_, ignored);
}

fs::path SharedDirectory::commit(const Manifest& manifest) {
  OutputFile file(path_ / kManifestName);
  file.write(format_manifest(manifest));
  file.finish();
  sync_directory(path_);
  fs::path directory = publish(root_, manifest.step, path_);
  committed_ = true;
  replace_symlink(step_name(manifest.step), root_ / "last");
  return directory;
}

}  // namespace bellows::checkpoint
