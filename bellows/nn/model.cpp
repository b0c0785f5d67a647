#include "bellows/nn/model.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/nn/copy_tensors.h"
#include "bellows/nn/load_state.h"

namespace bellows::nn {
namespace {

class FunctionModel final : public Model::Interface {
 public:
  FunctionModel(std::function<Tree(const Tree&)> forward, NamedTensors parameters,
                NamedTensors buffers)
      : forward_(std::move(forward)),
        ties_(ties_of(parameters, buffers)),
        parameters_(without_ties(std::move(parameters))),
        buffers_(without_ties(std::move(buffers))) {}

  Tree forward(const Tree& input) override { return forward_(input); }
  NamedTensors named_parameters() const override { return parameters_; }
  NamedTensors named_buffers() const override { return buffers_; }
  Ties ties() const override { return ties_; }
  void train(bool on) override { training_ = on; }
  bool is_training() const override { return training_; }
  void to(c10::Device device) override {
    move_in_place(parameters_, device);
    move_in_place(buffers_, device);
  }

 private:
  std::function<Tree(const Tree&)> forward_;
  Ties ties_;
  NamedTensors parameters_;
  NamedTensors buffers_;
  bool training_ = true;
};

void check_named(const NamedTensors& tensors, const std::string& kind,
                 std::set<std::string>& names) {
  for (const auto& [name, tensor] : tensors) {
    if (name.empty())
      throw ValueError(concat("from_function: got a ", kind, " without a name, expected a name"));
    if (!tensor.defined())
      throw ValueError(
          concat("from_function: ", kind, " ", name, " is undefined, expected a tensor"));
    if (!names.insert(name).second)
      throw ValueError(concat("from_function: the name ", name,
                              " is used twice, expected one tensor for each name"));
  }
}

at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  return tensor.detach().to(tensor.options().device(device));
}

}  // namespace

Model::Model(std::shared_ptr<Interface> implementation)
    : implementation_(std::move(implementation)) {
  if (!implementation_) throw ValueError("Model: got no implementation, expected one");
}

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const auto& [name, tensor] : named_parameters()) count += tensor.numel();
  return count;
}

NamedTensors Model::state_dict(Names names) const {
  return joined_state(named_parameters(), named_buffers(), ties(), names);
}

IncompatibleKeys Model::load_state_dict(const NamedTensors& state,
                                        const LoadOptions& options) const {
  const StateLoad load = plan_load(state_dict(), ties(), state, options);
  apply(load);
  return load.report;
}

std::shared_ptr<Model::Interface> Model::Interface::deep_copy() const {
  throw ValueError(
      "deep_copy: a model of this kind keeps handles to its tensors that only its maker knows. "
      "Give a factory: model.deep_copy(factory).");
}

Model Model::deep_copy() const {
  return Model(implementation_->deep_copy());
}

Model Model::deep_copy(const std::function<Model()>& factory) const {
  const auto tensors_of = [](const Model& model) {
    return OwnTensors{model.named_parameters(), model.named_buffers(), model.ties()};
  };
  const KeepRandomState keep;
  TensorCopies tensors(tensors_of(*this));
  Model copy = factory();
  tensors.restore();
  if (const std::string fault = tensors.misfit(tensors_of(copy)); !fault.empty())
    throw ValueError("deep_copy: the factory's model is not like the original: " + fault + ".");
  tensors.give_to(tensors_of(copy));
  copy.train(is_training());
  return copy;
}

IncompatibleKeys Model::check_state_dict(const NamedTensors& state,
                                         const LoadOptions& options) const {
  return plan_load(state_dict(), ties(), state, options).report;
}

Model from_function(std::function<Tree(const Tree&)> forward, NamedTensors parameters,
                    NamedTensors buffers) {
  if (!forward) throw ValueError("from_function: got an empty function, expected one to call");
  std::set<std::string> names;
  check_named(parameters, "parameter", names);
  check_named(buffers, "buffer", names);
  return Model(std::make_shared<FunctionModel>(std::move(forward), std::move(parameters),
                                               std::move(buffers)));
}

void move_in_place(const NamedTensors& tensors, c10::Device device) {
  for (const auto& [name, tensor] : tensors) {
    if (tensor.device() != device) replace_data(tensor, moved(tensor, device));
    if (tensor.is_leaf() && tensor.grad().defined() && tensor.grad().device() != device)
      tensor.mutable_grad() = moved(tensor.grad(), device);
  }
}

void replace_data(const at::Tensor& tensor, const at::Tensor& data) {
  // set_data refuses the meta device, though the tensor can hold it as well as any other.
  if (data.is_meta() != tensor.is_meta())
    tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
  else
    tensor.set_data(data);
}

NamedTensors without_ties(NamedTensors tensors) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::erase_if(tensors, [&](const auto& entry) {
    return !entry.second.defined() || !seen.insert(entry.second.unsafeGetTensorImpl()).second;
  });
  return tensors;
}

Ties ties_of(const NamedTensors& parameters, const NamedTensors& buffers) {
  Ties out;
  for (const NamedTensors* tensors : {&parameters, &buffers}) {
    std::unordered_map<const c10::TensorImpl*, std::string> first;
    for (const auto& [name, tensor] : *tensors) {
      if (!tensor.defined()) continue;
      const auto [found, added] = first.emplace(tensor.unsafeGetTensorImpl(), name);
      if (!added) out.emplace_back(name, found->second);
    }
  }
  return out;
}

}  // namespace bellows::nn
