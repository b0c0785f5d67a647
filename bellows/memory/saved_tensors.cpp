#include "bellows/memory/saved_tensors.h"

#include <c10/util/DimVector.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "bellows/core/error.h"

namespace bellows::memory {
namespace {

// A slot that LibTorch carries into the threads of a backward; nothing else uses it.
const auto kSlot = c10::DebugInfoKind::TEST_INFO;

struct Hooks : c10::DebugInfoBase {
  SavedTensorFactory factory;
};

const Hooks* hooks_in_force() {
  return static_cast<const Hooks*>(c10::ThreadLocalDebugInfo::get(kSlot));
}

bool is_parameter(const at::Tensor& tensor) {
  if (tensor.is_leaf()) return tensor.requires_grad();
  return tensor.is_view() && tensor._base().is_leaf() && tensor._base().requires_grad();
}

// A saved tensor with the check of its version, which LibTorch leaves out where there are hooks.
class Checked : public torch::autograd::SavedVariableHooks {
 public:
  explicit Checked(std::unique_ptr<SavedTensor> saved) : saved_(std::move(saved)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    counter_ = tensor.unsafeGetTensorImpl()->version_counter();
    version_ = counter_.current_version();
    sizes_ = tensor.sizes();
    options_ = tensor.options();
    saved_->pack(tensor.tensor_data(), is_parameter(tensor));
  }

  at::Tensor call_unpack_hook() override {
    const uint32_t now = counter_.current_version();
    TORCH_CHECK(now == version_,
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: [",
                options_.dtype().name(), " ", sizes_, " on ", options_.device(), "] is at version ",
                now, "; expected version ", version_,
                " instead. Hint: the change came after a forward pass had saved the tensor; make "
                "a new tensor there, or change it before.");
    return saved_->unpack();
  }

 private:
  std::unique_ptr<SavedTensor> saved_;
  c10::VariableVersion counter_;
  uint32_t version_ = 0;
  c10::DimVector sizes_;
  c10::TensorOptions options_;
};

class Engine final : public torch::autograd::Engine {
 public:
  Engine() = default;
  ~Engine() override { stop(); }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    const Hooks* hooks = hooks_in_force();
    if (hooks == nullptr) return nullptr;
    auto saved = hooks->factory();
    return saved == nullptr ? nullptr : std::make_unique<Checked>(std::move(saved));
  }

  static torch::autograd::Engine& get() {
    static Engine engine;
    return engine;
  }
};

// Another engine than LibTorch's own stays: Python's does more than ours.
[[maybe_unused]] const bool installed = [] {
  using Base = torch::autograd::Engine;
  if (&Base::get_default_engine() == &Base::get_base_engine())
    torch::autograd::set_default_engine_stub(&Engine::get);
  return true;
}();

void check_engine() {
  if (&torch::autograd::Engine::get_default_engine() == &Engine::get()) return;
  throw EnvironmentError(
      "Saved tensors cannot be handled in this process: its autograd engine is another one than "
      "Bellows', as where Python's torch is loaded. Use torch.autograd.graph.saved_tensors_hooks "
      "and torch.utils.checkpoint there, or a process without Python");
}

std::shared_ptr<Hooks> make_hooks(SavedTensorFactory factory) {
  check_engine();
  auto hooks = std::make_shared<Hooks>();
  hooks->factory = std::move(factory);
  return hooks;
}

}  // namespace

struct SavedTensorGuard::State {
  explicit State(std::shared_ptr<Hooks> hooks) : slot(kSlot, std::move(hooks)) {}
  c10::DebugInfoGuard slot;
};

SavedTensorGuard::SavedTensorGuard(SavedTensorFactory factory)
    : state_(std::make_unique<State>(make_hooks(std::move(factory)))) {}

SavedTensorGuard::~SavedTensorGuard() = default;

bool saved_tensor_hooks_on() {
  return hooks_in_force() != nullptr;
}

}  // namespace bellows::memory
