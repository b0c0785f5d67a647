#include <optional>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/parallel/data_parallel.h"

namespace bellows::parallel {
namespace {

// The rows that all tensors have, or nothing where none has rows.
std::optional<int64_t> rows_of(const Tree& batch) {
  std::optional<int64_t> rows;
  std::string first;
  batch.for_each_tensor([&](const std::string& path, const at::Tensor& tensor) {
    if (tensor.dim() == 0) return;
    if (!rows) {
      rows = tensor.size(0);
      first = path;
    } else if (*rows != tensor.size(0)) {
      throw ValueError(concat("scatter: tensor '", first, "' of the batch has ", *rows,
                              " rows, tensor '", path, "' has ", tensor.size(0),
                              ": expected the same number in all"));
    }
  });
  return rows;
}

at::Tensor joined(const std::vector<at::Tensor>& parts, c10::Device device) {
  std::vector<at::Tensor> here;
  for (const at::Tensor& part : parts) here.push_back(part.to(device));
  return here.front().dim() == 0 ? at::stack(here) : at::cat(here);
}

Tree join_parts(const std::vector<const Tree*>& parts, c10::Device device);

// The same element of each part.
template <class Get>
std::vector<const Tree*> element(const std::vector<const Tree*>& parts, Get get) {
  std::vector<const Tree*> out;
  for (const Tree* part : parts) out.push_back(&get(*part));
  return out;
}

[[noreturn]] void refuse(std::string_view first, std::string_view other) {
  throw ValueError(concat("gather: one replica's output has a ", first, " where another's has a ",
                          other, ", or another number of elements"));
}

Tree join_parts(const std::vector<const Tree*>& parts, c10::Device device) {
  const Tree& first = *parts.front();
  for (const Tree* part : parts)
    if (part->kind() != first.kind() ||
        (first.is_list() && part->list().size() != first.list().size()) ||
        (first.is_dict() && part->dict().size() != first.dict().size()))
      refuse(first.kind(), part->kind());
  if (first.is_tensor()) {
    std::vector<at::Tensor> tensors;
    for (const Tree* part : parts) tensors.push_back(part->tensor());
    return joined(tensors, device);
  }
  if (first.is_list()) {
    Tree::List out;
    for (size_t i = 0; i < first.list().size(); ++i)
      out.push_back(join_parts(
          element(parts, [i](const Tree& part) -> const Tree& { return part[i]; }), device));
    return out;
  }
  if (first.is_dict()) {
    Tree::Dict out;
    for (const auto& [key, value] : first.dict())
      out.emplace(key, join_parts(element(parts,
                                          [&key = key](const Tree& part) -> const Tree& {
                                            return part.at(key);
                                          }),
                                  device));
    return out;
  }
  return first;
}

}  // namespace

std::vector<Tree> scatter(const Tree& batch, const std::vector<c10::Device>& devices) {
  const auto count = static_cast<int64_t>(devices.size());
  const int64_t rows = rows_of(batch).value_or(0);
  const int64_t each = std::max<int64_t>((rows + count - 1) / count, 1);
  const int64_t parts = std::max<int64_t>((rows + each - 1) / each, 1);
  std::vector<Tree> out;
  for (int64_t i = 0; i < parts; ++i)
    out.push_back(batch.map([&](const at::Tensor& tensor) {
      const at::Tensor part =
          tensor.dim() == 0 ? tensor : tensor.narrow(0, i * each, std::min(each, rows - i * each));
      return part.to(devices[static_cast<size_t>(i)]);
    }));
  return out;
}

Tree gather(const std::vector<Tree>& outputs, c10::Device device) {
  if (outputs.empty()) throw ValueError("gather: got no outputs");
  std::vector<const Tree*> parts;
  for (const Tree& output : outputs) parts.push_back(&output);
  return join_parts(parts, device);
}

}  // namespace bellows::parallel
