#include "bellows/nn/copy_tensors.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/seed.h"
#include "bellows/nn/model.h"

namespace bellows::nn {
namespace {

std::vector<at::Tensor> handles(const OwnTensors& tensors) {
  std::vector<at::Tensor> out;
  for (const auto& [name, tensor] : tensors.parameters) out.push_back(tensor);
  for (const auto& [name, tensor] : tensors.buffers) out.push_back(tensor);
  return out;
}

std::string names(const NamedTensors& tensors) {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors) out.push_back(name);
  return out.empty() ? "none" : join(out);
}

std::string names(const Ties& ties) {
  std::vector<std::string> out;
  for (const auto& [name, first] : ties) out.push_back(concat(name, " to ", first));
  return out.empty() ? "none" : join(out);
}

std::string misfit_of(const char* kind, const NamedTensors& expected, const NamedTensors& got) {
  const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (!std::ranges::equal(expected, got, same_name))
    return concat("its ", kind, " are ", names(got), ", those of the original ", names(expected));
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].second.sizes() != expected[i].second.sizes()) {
      return concat("its ", got[i].first, " has shape ", got[i].second.sizes(),
                    ", that of the original ", expected[i].second.sizes());
    }
  }
  return "";
}

// Tensors made in inference mode do not count their changes.
int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

/// Copies; those that share memory, as a view and its base do, share that of one copy.
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::unordered_map<const c10::StorageImpl*, size_t> users;
  for (const at::Tensor& tensor : tensors) ++users[memory_of(tensor)];
  std::unordered_map<const c10::StorageImpl*, at::Tensor> copied;  // as bytes
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) {
    const c10::StorageImpl* memory = memory_of(tensor);
    if (memory == nullptr || tensor.is_meta() || users[memory] == 1) {
      out.push_back(tensor.detach().clone());
      continue;
    }
    const auto [bytes, added] = copied.emplace(memory, at::Tensor());
    if (added) {
      const auto size = static_cast<int64_t>(memory->nbytes());
      bytes->second = at::empty({0}, tensor.options().dtype(at::kByte))
                          .set_(tensor.storage(), 0, {size}, {1})
                          .clone();
    }
    out.push_back(at::empty({0}, tensor.options())
                      .set_(bytes->second.storage(), tensor.storage_offset(), tensor.sizes(),
                            tensor.strides()));
  }
  return out;
}

}  // namespace

TensorCopies::TensorCopies(OwnTensors original) : original_(std::move(original)) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> tensors = handles(original_);
  values_ = copies_of(tensors);
  for (const at::Tensor& tensor : tensors) {
    versions_.push_back(version_of(tensor));
    held_.push_back(tensor.use_count());
  }
}

std::string TensorCopies::newly_held() const {
  const std::vector<at::Tensor> tensors = handles(original_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].use_count() <= held_[i]) continue;
    const size_t first_buffer = original_.parameters.size();
    return i < first_buffer ? original_.parameters[i].first
                            : original_.buffers[i - first_buffer].first;
  }
  return "";
}

std::string TensorCopies::misfit(const OwnTensors& copy) const {
  std::string fault = misfit_of("parameters", original_.parameters, copy.parameters);
  if (fault.empty()) fault = misfit_of("buffers", original_.buffers, copy.buffers);
  if (fault.empty() && copy.ties != original_.ties) {
    fault = concat("its tied tensors are ", names(copy.ties), ", those of the original ",
                   names(original_.ties));
  }
  if (!fault.empty()) return fault;
  std::unordered_set<const c10::TensorImpl*> originals;
  for (const at::Tensor& tensor : handles(original_))
    originals.insert(tensor.unsafeGetTensorImpl());
  for (const NamedTensors* tensors : {&copy.parameters, &copy.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      if (originals.contains(tensor.unsafeGetTensorImpl()))
        return concat("it shares ", name, " with the original");
    }
  }
  return "";
}

void TensorCopies::give_to(const OwnTensors& copy) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> from = handles(original_), to = handles(copy);
  for (size_t i = 0; i < to.size(); ++i) {
    replace_data(to[i], values_[i]);
    to[i].set_requires_grad(from[i].requires_grad());
    if (to[i].is_leaf()) to[i].mutable_grad().reset();
  }
}

bool TensorCopies::restore() {
  const at::NoGradGuard no_grad;
  bool changed = false;
  const std::vector<at::Tensor> tensors = handles(original_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (version_of(tensors[i]) == versions_[i]) continue;
    tensors[i].copy_(values_[i]);
    changed = true;
  }
  return changed;
}

KeepRandomState::KeepRandomState() : state_(RandomState().state_dict()) {}

KeepRandomState::~KeepRandomState() {
  try {
    RandomState().load_state_dict(state_);
  } catch (const Error&) {  // a generator that came meanwhile: nothing to give back
  }
}

}  // namespace bellows::nn
