#include "bellows/checkpoint/slices.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

using Index = std::vector<int64_t>;
using Box = std::pair<Index, Index>;

std::string text_of(const Index& index) {
  return concat(at::IntArrayRef(index));
}

bool overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.first.size(); ++d) {
    if (a.second[d] <= b.first[d] || b.second[d] <= a.first[d]) return false;
  }
  return true;
}

// Values in the whole tensor, or -1 for a negative size or more than an int64 counts.
int64_t count_of(const Index& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) return -1;
  }
  return count;
}

}  // namespace

SliceAssembly::SliceAssembly(std::filesystem::path manifest,
                             const std::map<std::string, SlicedTensor>& sliced, uint64_t most_bytes)
    : manifest_(std::move(manifest)), sliced_(sliced), most_bytes_(most_bytes) {}

void SliceAssembly::fail(const std::string& name, const std::string& what) const {
  throw CorruptFileError(manifest_, "tensor '" + name + "': " + what);
}

bool SliceAssembly::take(const std::string& file, const std::string& name,
                         const at::Tensor& tensor) {
  const auto found = sliced_.find(name);
  if (found == sliced_.end()) return false;
  const SlicedTensor& form = found->second;
  const auto slice = std::ranges::find(form.slices, file, &Slice::file);
  if (slice == form.slices.end()) fail(name, "its slice in " + file + " is not listed");
  Box box{slice->offset, slice->offset};
  bool within = count_of(form.shape) >= 0 && box.first.size() == form.shape.size() &&
                tensor.dim() == std::ssize(form.shape);
  for (size_t d = 0; within && d < box.first.size(); ++d) {
    const int64_t size = tensor.size(static_cast<int64_t>(d));
    within = box.first[d] >= 0 && box.first[d] <= form.shape[d] - size;
    if (within) box.second[d] += size;
  }
  if (!within) {
    fail(name, concat("got a slice of shape ", tensor.sizes(), " at ", text_of(slice->offset),
                      " in ", file, ", expected one within shape ", text_of(form.shape)));
  }
  Whole& whole = wholes_[name];
  if (static_cast<uint64_t>(count_of(form.shape)) > most_bytes_ / tensor.element_size()) {
    fail(name, concat("shape ", text_of(form.shape), " is larger than the checkpoint's files"));
  }
  if (!whole.tensor.defined()) whole.tensor = at::empty(form.shape, tensor.options());
  if (whole.tensor.scalar_type() != tensor.scalar_type()) {
    fail(name, concat("got slices of types ", whole.tensor.scalar_type(), " and ",
                      tensor.scalar_type(), ", expected one type"));
  }
  at::Tensor place = whole.tensor;
  for (size_t d = 0; d < box.first.size(); ++d) {
    place = place.narrow(static_cast<int64_t>(d), box.first[d], box.second[d] - box.first[d]);
  }
  place.copy_(tensor);
  whole.boxes.push_back(std::move(box));
  return true;
}

NamedTensors SliceAssembly::finish() {
  NamedTensors tensors;
  for (const auto& [name, form] : sliced_) {
    Whole& whole = wholes_[name];
    if (whole.boxes.size() != form.slices.size()) {
      fail(name, concat("got ", whole.boxes.size(), " of ", form.slices.size(),
                        " slices that are listed, expected all"));
    }
    int64_t covered = 0;
    for (size_t i = 0; i < whole.boxes.size(); ++i) {
      const auto& [begin, end] = whole.boxes[i];
      int64_t count = 1;
      for (size_t d = 0; d < begin.size(); ++d) count *= end[d] - begin[d];
      covered += count;
      for (size_t j = 0; j < i; ++j) {
        if (count > 0 && overlap(whole.boxes[i], whole.boxes[j])) {
          fail(name, concat("the slices at ", text_of(whole.boxes[j].first), " and ",
                            text_of(begin), " overlap"));
        }
      }
    }
    if (!whole.tensor.defined() || covered != whole.tensor.numel()) {
      fail(name, concat("its slices hold ", covered, " values, expected ", count_of(form.shape),
                        " for shape ", text_of(form.shape)));
    }
    tensors.emplace_back(name, std::move(whole.tensor));
  }
  return tensors;
}

}  // namespace bellows::checkpoint
