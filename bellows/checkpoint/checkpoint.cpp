#include "bellows/checkpoint/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <set>

#include "bellows/checkpoint/contents.h"
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

template <class Pointers>
void check_names(const Pointers& parts) {
  for (const auto& [name, part] : parts) check_part_name(name, part != nullptr);
}

Tree read_state(const fs::path& directory, const Manifest& manifest, const std::string& name) {
  PartContents part = read_part(directory, manifest, name);
  std::map<std::string, at::Tensor> tensors(part.tensors.begin(), part.tensors.end());
  try {
    Tree tree = tree_from_json(part.state, tensors);
    if (tensors.empty()) return tree;
  } catch (const ValueError& error) {
    throw CorruptFileError(directory / kManifestName, "part '" + name + "': " + error.what());
  }
  throw CorruptFileError(
      directory / kManifestName,
      "part '" + name + "': tensor '" + tensors.begin()->first + "' belongs to nothing");
}

NamedTensors read_weights(const fs::path& directory, const Manifest& manifest) {
  const auto model = manifest.parts.find(kModelPart);
  if (model == manifest.parts.end() || model->second.files.empty()) {
    throw CorruptFileError(directory / kManifestName, "it lists no file of weights");
  }
  return read_part(directory, manifest, kModelPart).tensors;
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

// What is wrong with the contents; empty: nothing.
std::string damage_of(const fs::path& directory) {
  try {
    verify(directory);
    return "";
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
    return error.what();
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
  return commit(root, step, gather(step, model, parts));
}

void load(const fs::path& directory, const nn::Model& model, const MutableParts& parts) {
  check_names(parts);
  if (fs::is_regular_file(directory)) {
    formats::refuse_kind(directory, formats::kind_of(directory), "a checkpoint directory");
  }
  const Manifest manifest = read_manifest(directory);
  for (const auto& [name, part] : parts) {
    if (manifest.parts.contains(name)) continue;
    std::vector<std::string> names;
    for (const auto& [key, value] : manifest.parts) {
      if (key != kModelPart) names.push_back(key);
    }
    throw ValueError("checkpoint " + directory.string() + " has no part '" + name +
                     "', expected one of: " + join(names));
  }
  const NamedTensors weights = read_weights(directory, manifest);
  std::map<std::string, Tree> states;
  for (const auto& [name, part] : parts) states[name] = read_state(directory, manifest, name);

  model.check_state_dict(weights);  // refuses what does not fit, before anything is changed
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

fs::path directory_of(const fs::path& root, int64_t step) {
  return root / step_name(step);
}

bool is_damage(const Error& error) {
  if (dynamic_cast<const CorruptFileError*>(&error) != nullptr) return true;
  const auto* file = dynamic_cast<const FileError*>(&error);
  return file != nullptr && (file->code() == EIO || file->code() == ENOENT);
}

int64_t step_of(const fs::path& directory) {
  return read_manifest(directory).step;
}

void verify(const fs::path& directory) {
  const Manifest manifest = read_manifest(directory);
  for (const auto& [name, digest] : manifest.files) {
    open_safetensors_hashed(directory / name, digest).verify();
  }
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

std::vector<Fault> faults(const fs::path& root) {
  std::vector<Fault> faults;
  for (const fs::path& directory : candidates(root)) {
    if (directory.filename().string().starts_with('.')) continue;
    Fault fault{.directory = directory, .what = {}};
    fault.what = fault_of(directory, &fault.newer);
    if (!fault.what.empty()) faults.push_back(std::move(fault));
  }
  return faults;
}

std::optional<fs::path> latest(const fs::path& root, Check check) {
  const std::vector<fs::path> all = candidates(root);
  for (auto directory = all.rbegin(); directory != all.rend(); ++directory) {
    std::string fault = fault_of(*directory);
    if (fault.empty() && check == Check::contents) fault = damage_of(*directory);
    if (fault.empty()) return *directory;
    warn_left_out(*directory, fault);
  }
  return std::nullopt;
}

std::optional<fs::path> load_latest(const fs::path& root, const nn::Model& model,
                                    const MutableParts& parts) {
  std::exception_ptr first;
  const std::vector<fs::path> all = list(root);
  for (auto directory = all.rbegin(); directory != all.rend(); ++directory) {
    try {
      load(*directory, model, parts);
      return *directory;
    } catch (const Error& error) {
      if (!is_damage(error)) throw;
      if (first == nullptr) first = std::current_exception();
      warn_left_out(*directory, error.what());
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
  return std::nullopt;
}

void remove(const fs::path& directory) {
  const auto turn = take_turn();
  discard(resolved(directory));
}

void mark_best(const fs::path& root, const fs::path& directory) {
  const fs::path path = resolved(directory);
  if (path.parent_path() != resolved(root)) {
    throw ValueError("checkpoint: got " + directory.string() + ", expected a directory in " +
                     root.string());
  }
  static_cast<void>(read_manifest(path));
  const auto turn = take_turn();
  replace_symlink(path.filename(), root / "best");
}

void keep_last(const fs::path& root, int64_t count, const std::set<int64_t>& besides) {
  if (count < 1) {
    throw ValueError(concat("checkpoint: keep: got ", count, ", expected at least 1"));
  }
  const auto turn = take_turn();
  const std::vector<fs::path> all = list(root);
  std::set<std::string> linked = linked_steps(root);
  for (const int64_t step : besides) linked.insert(step_name(step));
  const size_t kept = std::min(all.size(), static_cast<size_t>(count));
  for (size_t i = 0; i + kept < all.size(); ++i) {
    if (!linked.contains(all[i].filename().string())) discard(all[i]);
  }
}

}  // namespace bellows::checkpoint
