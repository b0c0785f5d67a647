// A model as Bellows' own parts see it: named parameters and buffers, and a forward. Made from a
// torch::nn module (from_module.h), a TorchScript module (from_torchscript.h), or any function with
// parameters.
#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

#include "bellows/tree/tree.h"

namespace bellows::nn {

/// A handle: copies share the model, as LibTorch's module holders do. Not thread-safe.
class Model {
 public:
  /// What an adapter implements; users need it only for kinds of models that have no adapter here.
  class Interface {
   public:
    virtual ~Interface() = default;
    virtual Tree forward(const Tree& input) = 0;
    /// Dotted names in order of registration; tied tensors appear once, under their first name.
    virtual NamedTensors named_parameters() const = 0;
    virtual NamedTensors named_buffers() const = 0;
    virtual void train(bool on) = 0;
    virtual bool is_training() const = 0;
    /// Moves parameters, their gradients and buffers, in place: see move_in_place.
    virtual void to(c10::Device device) = 0;
  };

  /// Throws ValueError for a null implementation.
  explicit Model(std::shared_ptr<Interface> implementation);

  /// A list input is spread over forward's arguments; anything else is its only one.
  Tree forward(const Tree& input) const { return implementation_->forward(input); }
  NamedTensors named_parameters() const { return implementation_->named_parameters(); }
  NamedTensors named_buffers() const { return implementation_->named_buffers(); }
  void train(bool on = true) const { implementation_->train(on); }
  void eval() const { implementation_->train(false); }
  bool is_training() const { return implementation_->is_training(); }
  void to(c10::Device device) const { implementation_->to(device); }

  /// Number of values in all parameters.
  int64_t parameter_count() const;
  /// Parameters, then buffers, by name: what a checkpoint of the weights holds (Python's
  /// state_dict()). Detached, sharing the model's memory.
  NamedTensors state_dict() const;
  /// Copies values in, from any device. Throws ValueError that lists all missing, unexpected and
  /// mismatched (name, got type and shape, expected) entries before anything is changed.
  void load_state_dict(const NamedTensors& state) const;

 private:
  std::shared_ptr<Interface> implementation_;
};

/// A model from a function and the tensors it trains. The function gets the input as it is; train
/// and eval only set what is_training() says. Throws ValueError for an empty function, an undefined
/// tensor, or a name that is empty or used twice.
Model from_function(std::function<Tree(const Tree&)> forward, NamedTensors parameters,
                    NamedTensors buffers = {});

/// For adapters: moves each tensor, and its gradient, to `device`, so that every handle to it
/// follows. To the meta device too, which Module::to of LibTorch refuses; from there it is
/// LibTorch's error.
void move_in_place(const NamedTensors& tensors, c10::Device device);

/// For adapters: the tensors without undefined ones and without those that came before under
/// another name.
NamedTensors without_ties(NamedTensors tensors);

}  // namespace bellows::nn
