#include <caffe2/serialize/inline_container.h>
#include <exception>

#include <ATen/ops/empty.h>

#include "bellows/checkpoint/torch_file.h"
#include "bellows/checkpoint/torch_pickle_writer.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;

// LibTorch's own writer of archives, the one that torch.save uses, over our file seam. Errors of
// the file must not pass through its C code: they wait here.
class Archive {
 public:
  explicit Archive(OutputFile& file)
      : file_(file),
        writer_([this](const void* data, size_t bytes) { return take(data, bytes); }) {}
  ~Archive() {
    try {
      if (!writer_.finalized()) writer_.writeEndOfFile();  // its destructor would end the process
    } catch (...) {
      return;
    }
  }
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  void write(const std::string& name, const void* data, size_t bytes) {
    guarded([&] { writer_.writeRecord(name, data, bytes); });
  }
  void write(const std::string& name, const std::string& text) {
    write(name, text.data(), text.size());
  }
  void finish() {
    guarded([&] { writer_.writeEndOfFile(); });
  }

 private:
  size_t take(const void* data, size_t bytes) {
    if (failure_) return 0;
    try {
      file_.write(std::span(static_cast<const std::byte*>(data), bytes));
      return bytes;
    } catch (...) {
      failure_ = std::current_exception();
      return 0;
    }
  }
  template <class Fn>
  void guarded(const Fn& fn) {
    try {
      fn();
    } catch (...) {
      if (failure_) std::rethrow_exception(failure_);
      throw;
    }
    if (failure_) std::rethrow_exception(failure_);
  }

  OutputFile& file_;
  std::exception_ptr failure_;
  caffe2::serialize::PyTorchStreamWriter writer_;
};

void write_storage(Archive& archive, const std::string& name, const at::Storage& storage) {
  if (storage.device().is_cpu()) {
    archive.write(name, storage.data(), storage.nbytes());
    return;
  }
  at::Tensor bytes = at::empty({0}, at::TensorOptions(at::kByte).device(storage.device()));
  bytes.set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
  const at::Tensor host = bytes.to(at::kCPU);
  archive.write(name, host.const_data_ptr(), host.nbytes());
}

}  // namespace

void write_torch_file(const fs::path& path, const PyValue& value) {
  const TorchPickleWriter pickle(value);
  replace_file(path, [&](OutputFile& file) {
    Archive archive(file);
    archive.write("data.pkl", pickle.pickle());
    archive.write(".format_version", "1");
    archive.write(".storage_alignment", "64");
    archive.write("byteorder", "little");
    size_t number = 0;
    for (const at::Storage& storage : pickle.storages()) {
      write_storage(archive, concat("data/", number++), storage);
    }
    archive.finish();
  });
}

}  // namespace bellows::checkpoint
