#include "bellows/nn/model.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::nn {
namespace {

class FunctionModel final : public Model::Interface {
 public:
  FunctionModel(std::function<Tree(const Tree&)> forward, NamedTensors parameters,
                NamedTensors buffers)
      : forward_(std::move(forward)),
        parameters_(without_ties(std::move(parameters))),
        buffers_(without_ties(std::move(buffers))) {}

  Tree forward(const Tree& input) override { return forward_(input); }
  NamedTensors named_parameters() const override { return parameters_; }
  NamedTensors named_buffers() const override { return buffers_; }
  void train(bool on) override { training_ = on; }
  bool is_training() const override { return training_; }
  void to(c10::Device device) override {
    move_in_place(parameters_, device);
    move_in_place(buffers_, device);
  }

 private:
  std::function<Tree(const Tree&)> forward_;
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

std::string type_and_shape(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return concat(c10::getDtypeNames(tensor.scalar_type()).first, " ", tensor.sizes());
}

bool same_kind(const at::Tensor& got, const at::Tensor& expected) {
  return got.defined() && got.scalar_type() == expected.scalar_type() &&
         got.sizes() == expected.sizes();
}

/// What keeps a state from being loaded, in words.
struct Misfits {
  std::vector<std::string> missing, unexpected, mismatched;

  bool none() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  std::string text() const {
    std::string out;
    if (!missing.empty()) out += concat(" Missing: ", join(missing), ".");
    if (!unexpected.empty()) out += concat(" Unexpected: ", join(unexpected), ".");
    if (!mismatched.empty()) out += concat(" Mismatched: ", join(mismatched, "; "), ".");
    return out;
  }
};

using Targets = std::unordered_map<std::string, at::Tensor>;

/// Compares; `pairs` receives (target, value) for what fits.
Misfits match(const NamedTensors& own, const NamedTensors& state,
              std::vector<std::pair<at::Tensor, at::Tensor>>& pairs) {
  Misfits out;
  Targets targets(own.begin(), own.end());
  std::unordered_set<std::string> seen;
  for (const auto& [name, value] : state) {
    const auto found = targets.find(name);
    if (!seen.insert(name).second) {
      out.unexpected.push_back(name + " (a second time)");
    } else if (found == targets.end()) {
      out.unexpected.push_back(name);
    } else if (!same_kind(value, found->second)) {
      out.mismatched.push_back(concat(name, " (got ", type_and_shape(value), ", expected ",
                                      type_and_shape(found->second), ")"));
    } else if (found->second.is_meta() || value.is_meta()) {
      out.mismatched.push_back(name + " (on the meta device, which holds no values)");
    } else {
      pairs.emplace_back(found->second, value);
    }
  }
  for (const auto& [name, tensor] : own)
    if (!seen.contains(name)) out.missing.push_back(name);
  return out;
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

NamedTensors Model::state_dict() const {
  NamedTensors out = named_parameters();
  NamedTensors buffers = named_buffers();
  std::move(buffers.begin(), buffers.end(), std::back_inserter(out));
  for (auto& [name, tensor] : out) tensor = tensor.detach();
  return out;
}

void Model::load_state_dict(const NamedTensors& state) const {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  const Misfits misfits = match(state_dict(), state, pairs);
  if (!misfits.none())
    throw ValueError(concat("The state does not fit the model.", misfits.text(),
                            " Build the model with the options of the one that was saved."));
  at::NoGradGuard no_grad;
  for (auto& [target, value] : pairs) target.copy_(value);
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
    if (tensor.device() != device) {
      const at::Tensor there = moved(tensor, device);
      if (there.is_meta())  // set_data refuses it, though the tensor can hold it as well as any
                            // other
        tensor.unsafeGetTensorImpl()->shallow_copy_from(there.getIntrusivePtr());
      else
        tensor.set_data(there);
    }
    if (tensor.is_leaf() && tensor.grad().defined() && tensor.grad().device() != device)
      tensor.mutable_grad() = moved(tensor.grad(), device);
  }
}

NamedTensors without_ties(NamedTensors tensors) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::erase_if(tensors, [&](const auto& entry) {
    return !entry.second.defined() || !seen.insert(entry.second.unsafeGetTensorImpl()).second;
  });
  return tensors;
}

}  // namespace bellows::nn
