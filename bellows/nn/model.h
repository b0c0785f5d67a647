// A model as Bellows' own parts see it: named parameters and buffers, and a forward. Made from a torch::nn
// module, a TorchScript module, or any function with parameters.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

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
    /// Moves parameters, their gradients and buffers.
    virtual void to(c10::Device device) = 0;
  };

  explicit Model(std::shared_ptr<Interface> implementation);

  /// A list input is spread over forward's arguments; a tensor is its only one.
  Tree forward(const Tree& input) const { return implementation_->forward(input); }
  NamedTensors named_parameters() const { return implementation_->named_parameters(); }
  NamedTensors named_buffers() const { return implementation_->named_buffers(); }
  void train(bool on = true) const { implementation_->train(on); }
  void eval() const { implementation_->train(false); }
  bool is_training() const { return implementation_->is_training(); }
  void to(c10::Device device) const { implementation_->to(device); }

  /// Number of values in all parameters.
  int64_t parameter_count() const;
  /// Parameters, then buffers, by name: what a checkpoint of the weights holds (Python's state_dict()).
  NamedTensors state_dict() const;
  /// Copies values in. Throws ValueError that lists all missing, unexpected and mismatched (name, got
  /// shape and type, expected) entries before anything is changed.
  void load_state_dict(const NamedTensors& state) const;

 private:
  std::shared_ptr<Interface> implementation_;
};

/// A model from a function and the tensors it trains.
Model from_function(std::function<Tree(const Tree&)> forward, NamedTensors parameters,
                    NamedTensors buffers = {});

}  // namespace bellows::nn
