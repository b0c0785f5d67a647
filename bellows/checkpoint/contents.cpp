#include "bellows/checkpoint/contents.h"

#include <algorithm>
#include <cctype>

#include "bellows/checkpoint/directory.h"
#include "bellows/checkpoint/safetensors_io.h"
#include "bellows/checkpoint/slices.h"
#include "bellows/checkpoint/tree_json.h"
#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;

void write_all(const fs::path& directory, int64_t step, const Contents& contents) {
  Manifest manifest{.step = step, .files = {}, .parts = {}};
  for (const auto& [name, part] : contents) {
    Part& written = manifest.parts[name];
    written.state = part.state;
    if (part.tensors.empty() && name != kModelPart) continue;
    const std::string file = name + ".safetensors";
    manifest.files[file] = write_safetensors_hashed(directory / file, part.tensors);
    written.files = {file};
  }
  OutputFile file(directory / kManifestName);
  file.write(format_manifest(manifest));
  file.finish();
  sync_directory(directory);
}

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
  const auto turn = take_turn();
  make_directories(root);
  collect_left_overs(root);
  const fs::path written = hidden_name(root, step, "tmp");
  fs::path directory;
  try {
    make_directory(written);
    write_all(written, step, contents);
    directory = publish(root, step, written);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(written, ignored);
    throw;
  }
  replace_symlink(step_name(step), root / "last");
  return directory;
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
