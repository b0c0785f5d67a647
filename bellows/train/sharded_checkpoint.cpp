#include "bellows/train/sharded_checkpoint.h"

#include <optional>

#include "bellows/checkpoint/shares.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/train/ranks.h"

namespace bellows::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::Digest;

Tree to_tree(const std::map<std::string, Digest>& digests) {
  Tree::Dict files;
  for (const auto& [file, digest] : digests) {
    files[file] = Tree::Dict{{"bytes", static_cast<int64_t>(digest.bytes)},
                             {"hash", checkpoint::hash_text(digest.hash)}};
  }
  return files;
}

void add(const Tree& files, std::map<std::string, Digest>& digests) {
  for (const auto& [file, digest] : files.dict()) {
    digests[file] = {.bytes = static_cast<uint64_t>(digest.at("bytes").integer()),
                     .hash = *checkpoint::parse_hash(digest.at("hash").string()),
                     .of = Digest::Of::header};
  }
}

// What must be the same on all ranks.
std::string layout(const checkpoint::Shares& shares) {
  std::string text;
  for (const auto& [file, pieces] : shares.files) {
    if (shares.part_of.at(file) != "model" && shares.part_of.at(file) != "optimizer") continue;
    for (const auto& piece : pieces) {
      text += concat(file, ' ', piece.tensor, ' ', piece.row, ' ', piece.rows, '\n');
    }
  }
  return checkpoint::hash_text(checkpoint::hash_of(text));
}

}  // namespace

fs::path save_sharded(const parallel::Group& group, const fs::path& root, int64_t step,
                      const nn::Model& model, const checkpoint::Parts& parts) {
  checkpoint::Contents contents;
  checkpoint::Shares shares;
  std::optional<checkpoint::SharedDirectory> directory;  // rank 0's
  on_all_ranks(group, [&] {
    contents = checkpoint::gather(step, model, parts);
    shares = checkpoint::plan_shares(step, contents, group.size());
  });
  const Tree begun = on_first_rank(group, [&] {
    directory.emplace(root, step);
    return Tree(Tree::List{directory->path().string(), layout(shares)});
  });
  std::map<std::string, Digest> own;
  on_all_ranks(group, [&] {
    if (layout(shares) != begun[1].string()) {
      throw ValueError(
          "a sharded checkpoint: weights or optimizer state have other names or shapes than on "
          "rank 0");
    }
    own = checkpoint::write_share(begun[0].string(), contents, shares, group.rank());
  });
  std::map<std::string, Digest> all = own;
  if (group.size() > 1) {
    all.clear();
    for (const Tree& files : group.all_gather_object(to_tree(own))) add(files, all);
  }
  return on_first_rank(group,
                       [&] {
                         shares.manifest.files = all;
                         return Tree(directory->commit(shares.manifest).string());
                       })
      .string();
}

}  // namespace bellows::train
