// What a file of weights, or one taken for it, is: told by its content, never by its name. Needs no
// LibTorch, and runs none of the code that some of these kinds hold.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace bellows::formats {

enum class FileKind {
  checkpoint_directory,  // of Bellows
  safetensors,
  torch_save,          // Python's torch.save of tensors and containers, zip
  torch_save_legacy,   // the same, from before PyTorch 1.6
  torch_module,        // torch.save of a whole module: a pickle of the user's classes
  torchscript,         // torch.jit.save
  libtorch_archive,    // torch::save of modules or tensors in C++
  libtorch_optimizer,  // torch::save of an optimizer in C++
  exported_program,    // torch.export, AOTInductor
  pickle,              // Python's pickle without tensors' bytes
  numpy,               // .npy, .npz
  onnx,
  gguf,
  hdf5,
  zip,
  tar,
  compressed,  // gzip, bzip2, xz, zstd
  git_lfs_pointer,
  text,  // a web page, JSON, TOML, …
  directory,
  empty,
  unknown,
};

/// By content; reads a few kilobytes, and the pickle of PyTorch's archives. A damaged file is of
/// the kind that it begins as. Throws FileError (absent, unreadable), EnvironmentError for a pipe
/// or a device.
FileKind kind_of(const std::filesystem::path& path);

/// "a TorchScript archive (torch.jit.save)".
std::string_view name(FileKind kind);
/// What reads or mends it: "nn::load_torchscript loads it".
std::string_view right_call(FileKind kind);
/// Both: "a TorchScript archive (torch.jit.save); nn::load_torchscript loads it".
std::string describe(FileKind kind);

/// For readers that were given another kind. Throws ValueError "<path>: is <kind>, expected
/// <expected>; <right call>".
[[noreturn]] void refuse_kind(const std::filesystem::path& path, FileKind kind,
                              std::string_view expected);

/// As refuse_kind, where the file is recognisably of another kind than `own`; a damaged one and
/// text are left to the reader's own error.
void refuse_other_kind(const std::filesystem::path& path, FileKind own, std::string_view expected);

}  // namespace bellows::formats
