// The tensors of an opened torch.save file or LibTorch archive, made on request.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include <ATen/core/Tensor.h>

#include "bellows/checkpoint/py_value.h"
#include "bellows/formats/file_kind.h"
#include "bellows/formats/torch_contents.h"

namespace bellows::checkpoint {

/// Deeper nests, and containers that hold themselves, are neither read nor written.
inline constexpr int kDeepestContainers = 200;

/// Not thread-safe.
class TorchTensors {
 public:
  /// `kind` is that of the file: one of PyTorch's. Throws as read_torch_file.
  TorchTensors(const std::filesystem::path& path, formats::FileKind kind);

  /// None in legacy files; all 0 after Python's torch.serialization.set_crc32_options(False). Where
  /// there are any, what is read is compared with them: CorruptFileError names the entry.
  bool has_checksums() const;

  const formats::InputFile& file() const { return file_; }
  const formats::ZipDirectory& directory() const { return directory_; }
  const formats::TorchContents& contents() const { return contents_; }

  /// The part of dotted keys; all of it for none.
  formats::pickle::Value select(std::string_view keys) const;
  /// On the CPU; storages are read once while a tensor of them is alive.
  at::Tensor tensor(formats::pickle::Value value);
  /// A value with everything in it. Throws ValueError that names all classes it lacks.
  PyValue convert(formats::pickle::Value value);
  /// The tensors' descriptions by path, as `flatten` names them.
  std::vector<std::pair<std::string, formats::pickle::Value>> named(formats::pickle::Value value);

 private:
  formats::TorchContents read_contents(formats::FileKind kind) const;
  at::Storage storage(const formats::pickle::Storage& description);
  PyValue convert(formats::pickle::Value value, int depth);
  PyDict convert_dict(formats::pickle::Value value, int depth);
  void name_all(formats::pickle::Value value, const std::string& path, int depth,
                std::vector<std::pair<std::string, formats::pickle::Value>>& all);
  std::string name_of_key(formats::pickle::Value key, int depth);
  void check_depth(int depth) const;
  void refuse_unknown();

  formats::InputFile file_;
  formats::ZipDirectory directory_;
  formats::TorchContents contents_;
  bool script_ = false;  // objects are modules: their attributes count
  std::map<std::string, c10::weak_intrusive_ptr<c10::StorageImpl>> alive_;
  std::set<std::string> unknown_;
};

}  // namespace bellows::checkpoint
