#include "bellows/checkpoint/checkpoint.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "bellows/checkpoint/directory.h"
#include "bellows/checkpoint/manifest.h"
#include "bellows/checkpoint/safetensors_io.h"
#include "bellows/checkpoint/tree_json.h"
#include "bellows/checkpoint/weights_file.h"
#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFile = "model.safetensors";

std::string file_of(const std::string& part) {
  return part + ".safetensors";
}

template <class Pointers>
void check_names(const Pointers& parts) {
  for (const auto& [name, part] : parts) {
    const bool plain = std::ranges::all_of(
        name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
    if (name.empty() || !plain || name == "model" || part == nullptr) {
      throw ValueError("checkpoint: got part '" + name + "'" + (part == nullptr ? " = null" : "") +
                       ", expected a name of letters, digits, _ and - other than 'model', and an "
                       "object");
    }
  }
}

void write_parts(const fs::path& directory, const Parts& parts, Manifest& manifest) {
  for (const auto& [name, part] : parts) {
    NamedTensors tensors;
    try {
      manifest.parts[name] = tree_to_json(part->state_dict(), tensors);
      if (tensors.empty()) continue;
      manifest.files[file_of(name)] = write_safetensors_hashed(directory / file_of(name), tensors);
    } catch (const ValueError& error) {
      throw ValueError("checkpoint: part '" + name + "': " + error.what());
    }
  }
}

void write_all(const fs::path& directory, int64_t step, const nn::Model& model,
               const Parts& parts) {
  Manifest manifest{.step = step, .files = {}, .parts = {}};
  make_directory(directory);
  manifest.files[kModelFile] = write_safetensors_hashed(directory / kModelFile, model.state_dict());
  write_parts(directory, parts, manifest);
  OutputFile file(directory / kManifestName);
  file.write(format_manifest(manifest));
  file.finish();
  sync_directory(directory);
}

std::vector<std::string> keys_of(const std::map<std::string, std::string>& parts) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : parts) keys.push_back(key);
  return keys;
}

Tree read_part(const fs::path& directory, const Manifest& manifest, const std::string& name) {
  std::map<std::string, at::Tensor> tensors;
  const fs::path path = directory / file_of(name);
  if (const auto file = manifest.files.find(file_of(name)); file != manifest.files.end()) {
    for (auto& [key, tensor] : read_safetensors_hashed(path, file->second)) {
      tensors[key] = std::move(tensor);
    }
  }
  try {
    Tree tree = tree_from_json(manifest.parts.at(name), tensors);
    if (tensors.empty()) return tree;
  } catch (const ValueError& error) {
    throw CorruptFileError(directory / kManifestName, "part '" + name + "': " + error.what());
  }
  throw CorruptFileError(path, "tensor '" + tensors.begin()->first + "' belongs to nothing");
}

NamedTensors read_weights(const fs::path& directory, const Manifest& manifest) {
  const auto file = manifest.files.find(kModelFile);
  if (file == manifest.files.end()) {
    throw CorruptFileError(directory / kManifestName, concat("it does not list ", kModelFile));
  }
  return read_safetensors_hashed(directory / kModelFile, file->second);
}

// Lets the model refuse weights that do not fit, before anything else is changed.
void check_weights(const nn::Model& model, const NamedTensors& weights) {
  std::map<std::string, at::Tensor> saved(weights.begin(), weights.end());
  const NamedTensors own = model.state_dict();
  const bool fits = own.size() == saved.size() && std::ranges::all_of(own, [&](const auto& entry) {
                      const at::Tensor& tensor = saved[entry.first];
                      return tensor.defined() && tensor.sizes() == entry.second.sizes() &&
                             tensor.scalar_type() == entry.second.scalar_type();
                    });
  if (!fits) model.load_state_dict(weights);  // throws, with all names
}

// Loads the parts; where one refuses, those before it get their old state back.
class Restoration {
 public:
  void load(Stateful& part, const Tree& state) {
    Tree before = part.state_dict().map(
        [](const at::Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; });
    part.load_state_dict(state);
    loaded_.emplace_back(&part, std::move(before));
  }
  void undo() {
    for (auto& [part, before] : loaded_) {
      try {
        part->load_state_dict(before);
      } catch (const Error& error) {
        log::error(
            concat("checkpoint: a part could not be given back its old state: ", error.what()));
      }
    }
  }

 private:
  std::vector<std::pair<Stateful*, Tree>> loaded_;
};

// A replaced checkpoint that is half removed (a hidden name) is nothing to worry about.
void warn_left_out(const fs::path& directory, const std::string& fault) {
  if (!directory.filename().string().starts_with('.')) {
    log::warn_once("checkpoint left out: " + fault);
  }
}

std::set<std::string> linked_steps(const fs::path& root) {
  std::set<std::string> names;
  for (const char* link : {"last", "best"}) {
    std::error_code error;
    const fs::path target = fs::read_symlink(root / link, error);
    if (!error) names.insert(target.filename().string());
  }
  return names;
}

// Its own name without a trailing slash or a symbolic link.
fs::path resolved(const fs::path& directory) {
  std::error_code error;
  fs::path path = fs::canonical(directory, error);
  return error ? directory : path;
}

}  // namespace

fs::path save(const fs::path& root, int64_t step, const nn::Model& model, const Parts& parts) {
  if (step < 0) throw ValueError(concat("checkpoint: got step ", step, ", expected at least 0"));
  check_names(parts);
  make_directories(root);
  collect_left_overs(root);
  const fs::path written = hidden_name(root, step, "tmp");
  fs::path directory;
  try {
    write_all(written, step, model, parts);
    directory = publish(root, step, written);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(written, ignored);
    throw;
  }
  replace_symlink(step_name(step), root / "last");
  return directory;
}

void load(const fs::path& directory, const nn::Model& model, const MutableParts& parts) {
  check_names(parts);
  if (fs::is_regular_file(directory)) {
    formats::refuse_kind(directory, formats::kind_of(directory), "a checkpoint directory");
  }
  const Manifest manifest = read_manifest(directory);
  for (const auto& [name, part] : parts) {
    if (manifest.parts.contains(name)) continue;
    throw ValueError("checkpoint " + directory.string() + " has no part '" + name +
                     "', expected one of: " + join(keys_of(manifest.parts)));
  }
  const NamedTensors weights = read_weights(directory, manifest);
  std::map<std::string, Tree> states;
  for (const auto& [name, part] : parts) states[name] = read_part(directory, manifest, name);

  check_weights(model, weights);
  Restoration restoration;
  try {
    for (const auto& [name, part] : parts) restoration.load(*part, states[name]);
    model.load_state_dict(weights);
  } catch (...) {
    restoration.undo();
    throw;
  }
}

void load_weights(const fs::path& path, const nn::Model& model) {
  if (fs::is_directory(path)) {
    model.load_state_dict(read_weights(path, read_manifest(path)));
  } else {
    model.load_state_dict(read_weights_file(path));
  }
}

int64_t step_of(const fs::path& directory) {
  return read_manifest(directory).step;
}

std::vector<fs::path> list(const fs::path& root) {
  std::vector<fs::path> whole;
  std::vector<int64_t> steps;
  for (const fs::path& directory : candidates(root)) {
    const std::string fault = fault_of(directory);
    if (!fault.empty()) {
      warn_left_out(directory, fault);
      continue;
    }
    const int64_t step = step_of(directory);
    if (!steps.empty() && steps.back() == step) {
      whole.back() = directory;  // the replaced one is still there as well
    } else {
      whole.push_back(directory);
      steps.push_back(step);
    }
  }
  return whole;
}

std::optional<fs::path> latest(const fs::path& root) {
  const std::vector<fs::path> all = candidates(root);
  for (auto directory = all.rbegin(); directory != all.rend(); ++directory) {
    const std::string fault = fault_of(*directory);
    if (fault.empty()) return *directory;
    warn_left_out(*directory, fault);
  }
  return std::nullopt;
}

void mark_best(const fs::path& root, const fs::path& directory) {
  const fs::path path = resolved(directory);
  if (path.parent_path() != resolved(root)) {
    throw ValueError("checkpoint: got " + directory.string() + ", expected a directory in " +
                     root.string());
  }
  static_cast<void>(read_manifest(path));
  replace_symlink(path.filename(), root / "best");
}

void keep_last(const fs::path& root, int64_t count) {
  if (count < 1) {
    throw ValueError(concat("checkpoint: keep: got ", count, ", expected at least 1"));
  }
  const std::vector<fs::path> all = list(root);
  const std::set<std::string> linked = linked_steps(root);
  const size_t kept = std::min(all.size(), static_cast<size_t>(count));
  for (size_t i = 0; i + kept < all.size(); ++i) {
    if (!linked.contains(all[i].filename().string())) discard(all[i]);
  }
}

}  // namespace bellows::checkpoint
