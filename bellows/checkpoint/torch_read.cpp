#include "bellows/checkpoint/torch_file.h"
#include "bellows/checkpoint/torch_tensors.h"

namespace bellows::checkpoint {

PyValue read_torch_file(const std::filesystem::path& path, std::string_view select) {
  using formats::FileKind;
  const FileKind kind = formats::kind_of(path);
  if (kind != FileKind::torch_save && kind != FileKind::torch_save_legacy) {
    formats::refuse_kind(path, kind, "tensors and containers saved by Python's torch.save");
  }
  TorchTensors tensors(path, kind);
  return tensors.convert(tensors.select(select));
}

}  // namespace bellows::checkpoint
