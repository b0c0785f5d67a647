// Trees as bytes: their JSON, then each tensor's name, type, shape and bytes.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "bellows/checkpoint/tree_json.h"
#include "bellows/core/error.h"
#include "bellows/parallel/flat.h"
#include "bellows/parallel/group.h"

namespace bellows::parallel {
namespace {

void put(std::string& bytes, int64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void put(std::string& bytes, const std::string& text) {
  put(bytes, static_cast<int64_t>(text.size()));
  bytes += text;
}

std::string bytes_of(const Tree& tree) {
  NamedTensors tensors;
  std::string bytes;
  put(bytes, checkpoint::tree_to_json(tree, tensors));
  for (const auto& [name, tensor] : tensors) {
    check_dense(tensor, "an object's tensor " + name);
    const at::Tensor data = Flat::of(tensor.cpu()).bytes();
    put(bytes, name);
    put(bytes, static_cast<int64_t>(tensor.scalar_type()));
    put(bytes, tensor.dim());
    for (const int64_t size : tensor.sizes()) put(bytes, size);
    bytes.append(static_cast<const char*>(data.const_data_ptr()),
                 static_cast<size_t>(data.numel()));
  }
  return bytes;
}

class Reader {
 public:
  explicit Reader(const at::Tensor& bytes)
      : at_(static_cast<const char*>(bytes.const_data_ptr())), end_(at_ + bytes.numel()) {}
  bool at_end() const { return at_ == end_; }
  const char* take(int64_t count) {
    if (count < 0 || count > end_ - at_) throw ValueError("an object from another rank is cut off");
    return std::exchange(at_, at_ + count);
  }
  int64_t number() {
    int64_t value = 0;
    std::memcpy(&value, take(sizeof(value)), sizeof(value));
    return value;
  }
  std::string text() {
    const int64_t size = number();
    return {take(size), static_cast<size_t>(size)};
  }

 private:
  const char* at_;
  const char* end_;
};

at::Tensor tensor_from(Reader& reader) {
  const auto type = static_cast<at::ScalarType>(reader.number());
  std::vector<int64_t> sizes(static_cast<size_t>(reader.number()));
  for (auto& size : sizes) size = reader.number();
  at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(type));
  const int64_t bytes = tensor.numel() * tensor.element_size();
  const char* from = reader.take(bytes);
  if (bytes > 0) std::memcpy(tensor.mutable_data_ptr(), from, static_cast<size_t>(bytes));
  return tensor;
}

Tree tree_from(const at::Tensor& bytes) {
  Reader reader(bytes);
  const std::string json = reader.text();
  std::map<std::string, at::Tensor> tensors;
  while (!reader.at_end()) {
    const std::string name = reader.text();
    tensors[name] = tensor_from(reader);
  }
  return checkpoint::tree_from_json(json, tensors);
}

at::Tensor byte_tensor(const std::string& bytes, int64_t size) {
  at::Tensor tensor = at::zeros({size}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

at::Tensor size_tensor(const std::string& bytes) {
  at::Tensor size = at::empty({1}, at::kLong);
  *size.mutable_data_ptr<int64_t>() = static_cast<int64_t>(bytes.size());
  return size;
}

}  // namespace

Tree Group::broadcast_object(const Tree& object, int64_t src) const {
  const std::string bytes = rank() == src ? bytes_of(object) : std::string();
  const at::Tensor size = size_tensor(bytes);
  broadcast(size, src);
  const at::Tensor data = byte_tensor(bytes, *size.const_data_ptr<int64_t>());
  broadcast(data, src);
  return tree_from(data);
}

std::vector<Tree> Group::all_gather_object(const Tree& object) const {
  const std::string bytes = bytes_of(object);
  const at::Tensor sizes = all_gathered(size_tensor(bytes));
  const auto* counts = sizes.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(counts, counts + size());
  const at::Tensor all = all_gathered(byte_tensor(bytes, longest));
  std::vector<Tree> objects;
  for (int64_t rank = 0; rank < size(); ++rank) {
    objects.push_back(tree_from(all.select(0, rank).narrow(0, 0, counts[rank])));
  }
  return objects;
}

}  // namespace bellows::parallel
