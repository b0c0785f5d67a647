#include "tests/conformance/recorder.h"

#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>

#include "bellows/core/text.h"

namespace bellows::conformance {
namespace {

// Copies storages, each once.
class Copier {
 public:
  explicit Copier(c10::Device device) : device_(device) {}

  c10::IValue operator()(const c10::IValue& value) {
    if (value.isTensor()) return copy(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> out;
      for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(copy(tensor));
      return out;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> out;
      for (const auto& tensor : value.toOptionalTensorVector())
        out.push_back(tensor ? std::optional<at::Tensor>(copy(*tensor)) : std::nullopt);
      return out;
    }
    if (value.isDevice()) return device_;
    if (value.isGenerator()) return copy(value.toGenerator());
    if (value.isStorage()) return storage(value.toStorage());
    return value;
  }

 private:
  at::Tensor copy(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const auto known = tensors_.find(tensor.unsafeGetTensorImpl());
    if (known != tensors_.end()) return known->second;
    const auto key = device_.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::HPU;
    at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(
        storage(tensor.storage()), c10::DispatchKeySet(key), tensor.dtype());
    auto* impl = out.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    tensors_.emplace(tensor.unsafeGetTensorImpl(), out);
    return out;
  }

  // With the same state.
  at::Generator copy(const at::Generator& generator) {
    const at::Tensor state = generator.get_state();
    at::Generator out = device_.is_cpu() ? generator.clone()
                                         : at::globalContext()
                                               .getAcceleratorHooksInterface(device_.type())
                                               .getNewGenerator(device_.index());
    out.set_state(state);
    return out;
  }

  c10::Storage storage(const c10::Storage& from) {
    auto [found, is_new] = storages_.try_emplace(from.unsafeGetStorageImpl());
    if (is_new) {
      const c10::DeviceGuard guard(device_);
      c10::Allocator* allocator = c10::GetAllocator(device_.type());
      c10::DataPtr data = allocator->allocate(from.nbytes());
      if (from.nbytes() > 0) std::memcpy(data.get(), from.data(), from.nbytes());
      found->second =
          c10::Storage(c10::Storage::use_byte_size_t(), from.nbytes(), std::move(data), allocator,
                       /*resizable=*/true);
    }
    return found->second;
  }

  c10::Device device_;
  std::map<const void*, at::Tensor> tensors_;
  std::map<const void*, c10::Storage> storages_;
};

// All but the values: calls of the same description test the same.
std::string description(c10::ArrayRef<const c10::IValue> values) {
  std::ostringstream out;
  for (const c10::IValue& value : values) {
    const auto tensors = tensors_of({value});
    if (tensors.empty()) {
      if (value.isInt() || value.isDouble() || value.isBool() || value.isIntList() ||
          value.isBoolList())
        out << value;
      else
        out << value.tagKind();
    }
    for (const at::Tensor& tensor : tensors) {
      out << '[';
      if (tensor.defined()) out << tensor.scalar_type() << tensor.sizes() << tensor.strides();
      out << ']';
    }
    out << ';';
  }
  return out.str();
}

struct Recording {
  std::mutex mutex;
  size_t variants = 0;
  std::map<std::string, std::set<std::string>> seen;
  std::vector<Call> calls;
};
Recording* recording = nullptr;

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  if (!name || !name->name.starts_with("aten::")) return nullptr;
  const std::vector<c10::IValue> inputs(function.inputs().begin(), function.inputs().end());
  for (const at::Tensor& tensor : tensors_of(inputs))
    if (tensor.defined() && (!tensor.device().is_cpu() || !tensor.has_storage())) return nullptr;
  const std::lock_guard lock(recording->mutex);
  const std::string full = c10::toString(*name);
  auto& variants = recording->seen[full];
  if (variants.size() >= recording->variants ||
      !variants.insert(description(function.inputs())).second)
    return nullptr;
  Copier copy{c10::Device(c10::kCPU)};
  Call call{full, {}};
  for (const c10::IValue& value : function.inputs()) call.arguments.push_back(copy(value));
  recording->calls.push_back(std::move(call));
  return nullptr;
}

}  // namespace

std::vector<Call> record(const std::function<void()>& work, size_t variants) {
  Recording own;
  own.variants = variants;
  recording = &own;
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&note).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  work();
  at::removeCallback(handle);
  recording = nullptr;
  return std::move(own.calls);
}

std::vector<c10::IValue> copy_to(const std::vector<c10::IValue>& arguments, c10::Device device) {
  Copier copy(device);
  std::vector<c10::IValue> out;
  for (const c10::IValue& value : arguments) out.push_back(copy(value));
  return out;
}

std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> out;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) out.push_back(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(tensor);
    if (value.isOptionalTensorList())
      for (const auto& tensor : value.toOptionalTensorVector())
        out.push_back(tensor.value_or(at::Tensor()));
  }
  return out;
}

}  // namespace bellows::conformance
