// Writes values as a pickle of protocol 2, as torch.save does.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bellows/checkpoint/py_value.h"

namespace bellows::checkpoint {

class TorchPickleWriter {
 public:
  /// Throws ValueError, with the place in the value, for what torch.load(weights_only=True) cannot
  /// read: a sparse, quantized or undefined tensor, text that is not UTF-8.
  explicit TorchPickleWriter(const PyValue& value);

  const std::string& pickle() const { return out_; }
  /// In order of their keys "0", "1", …; any device.
  const std::vector<at::Storage>& storages() const { return storages_; }

 private:
  struct Known {
    size_t number;
    at::ScalarType type;  // that it was first written with
  };

  void write(const PyValue& value, const std::string& path);
  void write_number(int64_t value);
  void write_real(double value);
  void write_text(const std::string& text, const std::string& path);
  void write_bytes(const std::string& bytes);
  void write_items(const std::vector<PyValue>& items, const std::string& path);
  void write_dict(const PyDict& dict, const std::string& path);
  void write_tensor(const at::Tensor& tensor, const std::string& path);
  void write_sizes(at::IntArrayRef sizes);
  void write_name(const char* module, std::string_view name);
  void raw(std::string_view bytes) { out_ += bytes; }
  void little_endian(uint64_t value, size_t bytes);

  std::string out_;
  int depth_ = 0;  // of the value that is written
  std::vector<at::Storage> storages_;
  std::map<const void*, Known> known_;
};

}  // namespace bellows::checkpoint
