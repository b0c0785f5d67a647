#include "bellows/checkpoint/contents.h"

#include <algorithm>
#include <cctype>

#include "bellows/checkpoint/safetensors_io.h"
#include "bellows/checkpoint/shares.h"
#include "bellows/checkpoint/slices.h"
#include "bellows/checkpoint/tree_json.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;

PartContents contents_of(const std::string& name, const Stateful& part) {
  try {
    PartContents contents;
    contents.state = tree_to_json(part.state_dict(), contents.tensors);
    check_writable(contents.tensors);
    return contents;
  } catch (const ValueError& error) {
    throw ValueError("checkpoint: part '" + name + "': " + error.what());
  }
}

}  // namespace

void check_part_name(const std::string& name, bool present) {
  const bool plain = std::ranges::all_of(
      name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
  if (name.empty() || !plain || name == kModelPart || !present) {
    throw ValueError("checkpoint: got part '" + name + "'" + (present ? "" : " = null") +
                     ", expected a name of letters, digits, _ and - other than 'model', and an "
                     "object");
  }
}

Contents gather(int64_t step, const nn::Model& model, const Parts& parts) {
  if (step < 0) throw ValueError(concat("checkpoint: got step ", step, ", expected at least 0"));
  for (const auto& [name, part] : parts) check_part_name(name, part != nullptr);
  Contents contents;
  contents[kModelPart].tensors = model.state_dict();
  check_writable(contents[kModelPart].tensors);
  for (const auto& [name, part] : parts) contents[name] = contents_of(name, *part);
  return contents;
}

fs::path commit(const fs::path& root, int64_t step, const Contents& contents) {
  Shares shares = plan_shares(step, contents, 1);
  SharedDirectory directory(root, step);
  shares.manifest.files = write_share(directory.path(), contents, shares, 0);
  return directory.commit(shares.manifest);
}

PartContents read_part(const fs::path& directory, const Manifest& manifest,
                       const std::string& name) {
  const Part& part = manifest.parts.at(name);
  PartContents contents{.state = part.state, .tensors = {}};
  uint64_t bytes = 0;
  for (const std::string& file : part.files) bytes += manifest.files.at(file).bytes;
  SliceAssembly slices(directory / kManifestName, part.sliced, bytes);
  for (const std::string& file : part.files) {
    const fs::path path = directory / file;
    for (auto& [key, tensor] : read_safetensors_hashed(path, manifest.files.at(file))) {
      if (!slices.take(file, key, tensor)) contents.tensors.emplace_back(key, std::move(tensor));
    }
  }
  for (auto& whole : slices.finish()) contents.tensors.push_back(std::move(whole));
  return contents;
}

}  // namespace bellows::checkpoint
