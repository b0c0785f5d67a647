#include "bellows/formats/file_kind.h"

#include <algorithm>
#include <array>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/formats/torch_contents.h"

namespace bellows::formats {
namespace {

namespace fs = std::filesystem;
using pickle::Tag;
using pickle::Value;

struct Description {
  FileKind kind;
  std::string_view name;
  std::string_view right_call;
};
constexpr std::string_view kSaveStateDict =
    "save its state_dict() in Python (torch.save(model.state_dict(), path)) and load that";
constexpr std::array kDescriptions = {
    Description{FileKind::checkpoint_directory, "a checkpoint directory of Bellows",
                "checkpoint::load restores a run from it, checkpoint::load_weights a model"},
    Description{FileKind::safetensors, "a safetensors file",
                "checkpoint::read_safetensors reads it"},
    Description{FileKind::torch_save, "a file of Python's torch.save",
                "checkpoint::read_torch_file reads it"},
    Description{FileKind::torch_save_legacy,
                "a file of Python's torch.save in the format before 1.6",
                "checkpoint::read_torch_file reads it"},
    Description{FileKind::torch_module, "a whole module saved by Python's torch.save",
                kSaveStateDict},
    Description{FileKind::torchscript, "a TorchScript archive (torch.jit.save)",
                "nn::load_torchscript loads it, checkpoint::read_weights_file its weights alone"},
    Description{FileKind::libtorch_archive, "an archive of LibTorch's torch::save in C++",
                "torch::load loads it, checkpoint::read_weights_file reads its tensors"},
    Description{FileKind::libtorch_optimizer, "an optimizer saved by LibTorch's torch::save in C++",
                "torch::load into that optimizer loads it"},
    Description{FileKind::exported_program, "an exported program (torch.export)",
                "Bellows does not read it; save the module's state_dict() with torch.save"},
    Description{FileKind::pickle, "a Python pickle", "save tensors with torch.save or safetensors"},
    Description{FileKind::numpy, "a NumPy array file",
                "data::read_npy reads .npy; for weights, save them with safetensors or torch.save"},
    Description{FileKind::onnx, "an ONNX model",
                "save the weights from PyTorch, with safetensors or torch.save"},
    Description{FileKind::gguf, "a GGUF model",
                "save the weights from PyTorch, with safetensors or torch.save"},
    Description{FileKind::hdf5, "an HDF5 file (as Keras writes)",
                "save the weights with safetensors or torch.save"},
    Description{FileKind::zip, "a zip archive without PyTorch's entries",
                "unpack it, and name the file in it"},
    Description{FileKind::tar, "a tar archive", "unpack it, and name the file in it"},
    Description{FileKind::compressed, "a compressed file", "unpack it first"},
    Description{FileKind::git_lfs_pointer, "a pointer of Git LFS in place of the file",
                "fetch the file itself with `git lfs pull`"},
    Description{FileKind::text, "a text file",
                "name the file of weights; a web page saved by mistake?"},
    Description{FileKind::directory, "a directory without checkpoint.json",
                "name a checkpoint in it (checkpoints/last), or a file of weights"},
    Description{FileKind::empty, "an empty file", "write it again"},
    Description{FileKind::unknown, "of no kind that Bellows knows",
                "save weights with safetensors or torch.save"},
};

constexpr uint64_t kMostCode = 64 << 10;  // of a source file that is looked at

constexpr std::array<std::pair<std::string_view, FileKind>, 9> kPrefixes = {{
    {"\x93NUMPY", FileKind::numpy},
    {"GGUF", FileKind::gguf},
    {"\x89HDF\r\n\x1a\n", FileKind::hdf5},
    {"\x1f\x8b", FileKind::compressed},
    {"BZh", FileKind::compressed},
    {"\xfd"
     "7zXZ",
     FileKind::compressed},
    {"\x28\xb5\x2f\xfd", FileKind::compressed},
    {"version https://git-lfs", FileKind::git_lfs_pointer},
    {"<!DOCTYPE", FileKind::text},
}};

// The value of a key of a dictionary, or of an object's attributes.
std::optional<Value> member(const pickle::Heap& heap, Value value, std::string_view key) {
  if (value.tag == Tag::object) value = heap.object(value).state;
  if (value.tag != Tag::dict) return std::nullopt;
  const std::vector<Value>& items = heap.items(value);
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i].tag == Tag::text && heap.text(items[i]) == key) return items[i + 1];
  }
  return std::nullopt;
}

bool is_module(const TorchContents& contents) {
  return contents.root.tag == Tag::object &&
         member(contents.heap, contents.root, "_modules").has_value();
}

// TorchScript's code has functions; torch::save's modules have none.
FileKind kind_of_script(const InputBytes& file, const ZipDirectory& directory,
                        const std::string& prefix) {
  const std::string folder = prefix + "code/";
  for (auto entry = directory.lower_bound(folder);
       entry != directory.end() && entry->first.starts_with(folder); ++entry) {
    if (!entry->first.ends_with(".py")) continue;
    const std::string code = first_bytes(file, entry->second, kMostCode);
    if (code.find("  def ") != std::string::npos) return FileKind::torchscript;
  }
  try {
    const TorchContents contents = read_torch_zip(file, directory, prefix);
    const bool optimizer = member(contents.heap, contents.root, "param_groups") &&
                           member(contents.heap, contents.root, "state");
    return optimizer ? FileKind::libtorch_optimizer : FileKind::libtorch_archive;
  } catch (const Error&) {
    return FileKind::libtorch_archive;
  }
}

FileKind kind_of_zip(const InputBytes& file) {
  ZipDirectory directory;
  try {
    directory = read_zip_directory(file);
  } catch (const FileError&) {
    throw;
  } catch (const Error&) {          // damaged; torch.save's first entry or the directory tells
    constexpr size_t kHeader = 30;  // before an entry's name
    const std::string start = file.text(0, std::min<uint64_t>(file.size(), 512));
    const size_t pickle = start.find("data.pkl");
    const bool first = pickle != std::string::npos && start.find("PK", kHeader) > pickle;
    const uint64_t tail = std::min<uint64_t>(file.size(), 4096);  // of the directory
    const bool listed =
        file.text(file.size() - tail, tail).find("/data.pklPK") != std::string::npos;
    return first || listed ? FileKind::torch_save : FileKind::zip;
  }
  const auto holds = [&](std::string_view ending) {
    return std::ranges::any_of(directory,
                               [&](const auto& entry) { return entry.first.ends_with(ending); });
  };
  if (const auto prefix = torch_archive_prefix(directory)) {
    if (directory.contains(*prefix + "constants.pkl")) {
      return kind_of_script(file, directory, *prefix);
    }
    try {
      return is_module(read_torch_zip(file, directory, *prefix)) ? FileKind::torch_module
                                                                 : FileKind::torch_save;
    } catch (const FileError&) {
      throw;
    } catch (const Error&) {
      return FileKind::torch_save;
    }
  }
  if (holds("archive_format") || holds("serialized_exported_program.json")) {
    return FileKind::exported_program;
  }
  return holds(".npy") ? FileKind::numpy : FileKind::zip;
}

FileKind kind_of_legacy(const InputBytes& file) {
  try {
    return is_module(read_torch_legacy(file)) ? FileKind::torch_module
                                              : FileKind::torch_save_legacy;
  } catch (const FileError&) {
    throw;
  } catch (const Error&) {
    return FileKind::torch_save_legacy;
  }
}

bool is_text(std::string_view start) {
  return std::ranges::all_of(
      start, [](unsigned char c) { return c >= 0x20 || c == '\n' || c == '\r' || c == '\t'; });
}

// The header's length, then a JSON object. The length may be damaged: its reader says so.
bool begins_as_safetensors(std::string_view start, uint64_t size) {
  if (start.size() < 10 || start[8] != '{') return false;
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= uint64_t{static_cast<uint8_t>(start[i])} << (8 * i);
  const bool entry = start[9] == '"' || start[9] == '}';
  return entry ? !is_text(start.substr(0, 8)) : length >= 2 && length <= size;
}

// The end record without a comment, as PyTorch writes it: only the first bytes are damaged.
bool ends_as_zip(const InputBytes& file) {
  constexpr uint64_t kEnd = 22;
  return file.size() >= kEnd && file.text(file.size() - kEnd, 4) == "PK\5\6";
}

// ModelProto's first fields: ir_version, then producer_name or opset_import.
bool begins_as_onnx(std::string_view start) {
  return start.size() > 3 && start[0] == 8 && start[1] > 0 && start[1] < 64 &&
         (start[2] == 0x12 || start[2] == 0x42);
}

FileKind kind_of_bytes(const InputBytes& file) {
  if (file.size() == 0) return FileKind::empty;
  const std::string start = file.text(0, std::min<uint64_t>(file.size(), 512));
  if (begins_as_zip(start)) return kind_of_zip(file);
  if (begins_as_legacy_torch(start)) return kind_of_legacy(file);
  for (const auto& [prefix, kind] : kPrefixes) {
    if (start.starts_with(prefix)) return kind;
  }
  if (begins_as_safetensors(start, file.size())) return FileKind::safetensors;
  if (start.size() > 262 && start.compare(257, 5, "ustar") == 0) return FileKind::tar;
  if (start.size() > 1 && start[0] == '\x80' && start[1] > 0 && start[1] <= 5)
    return FileKind::pickle;
  if (begins_as_onnx(start)) return FileKind::onnx;
  if (ends_as_zip(file)) return kind_of_zip(file);
  return is_text(start) ? FileKind::text : FileKind::unknown;
}

const Description& description(FileKind kind) {
  return *std::ranges::find(kDescriptions, kind, &Description::kind);
}

}  // namespace

FileKind kind_of(const fs::path& path) {
  std::error_code failed;  // such as links in a circle: opening says so
  if (fs::is_directory(path, failed)) {
    return fs::status(path / "checkpoint.json", failed).type() == fs::file_type::not_found
               ? FileKind::directory
               : FileKind::checkpoint_directory;
  }
  return kind_of_bytes(InputFile(path));
}

std::string_view name(FileKind kind) {
  return description(kind).name;
}

std::string_view right_call(FileKind kind) {
  return description(kind).right_call;
}

std::string describe(FileKind kind) {
  return std::string(name(kind)) + "; " + std::string(right_call(kind));
}

void refuse_kind(const fs::path& path, FileKind kind, std::string_view expected) {
  throw ValueError(path.string() + ": is " + std::string(name(kind)) + ", expected " +
                   std::string(expected) + "; " + std::string(right_call(kind)));
}

void refuse_other_kind(const fs::path& path, FileKind own, std::string_view expected) {
  const FileKind kind = kind_of(path);
  const bool unclear = kind == FileKind::unknown || kind == FileKind::empty ||
                       kind == FileKind::zip || kind == FileKind::text;
  if (kind != own && !unclear) {
    refuse_kind(path, kind, expected);
  }
}

}  // namespace bellows::formats
