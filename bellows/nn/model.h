// A model as Bellows' own parts see it: named parameters and buffers, and a forward. Made from a
// torch::nn module (from_module.h), a TorchScript module (from_torchscript.h), or any function with
// parameters.
#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

#include "bellows/nn/state.h"
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
    /// The names that the two above leave out.
    virtual Ties ties() const { return {}; }
    virtual void train(bool on) = 0;
    virtual bool is_training() const = 0;
    /// Moves parameters, their gradients and buffers, in place: see move_in_place.
    virtual void to(c10::Device device) = 0;
    /// A model that shares nothing with this one: see Model::deep_copy. The default throws a
    /// ValueError that asks for a factory.
    virtual std::shared_ptr<Interface> deep_copy() const;
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
  NamedTensors state_dict(Names names = Names::first) const;
  Ties ties() const { return implementation_->ties(); }
  /// Copies values in, from any device and of any type, as Python's does: parameters keep their
  /// memory, gradients and requires_grad, and ties stay. A tied tensor may be in the state under
  /// any of its names, and under several where the values are the same. Types are converted, but
  /// not complex numbers into real ones, nor fractions into integers: such entries are mismatched,
  /// as other shapes are. Throws ValueError that lists all missing, unexpected and mismatched
  /// entries (got type and shape, expected), names that collide and ties that disagree, before
  /// anything is changed; what the options let pass is reported.
  IncompatibleKeys load_state_dict(const NamedTensors& state,
                                   const LoadOptions& options = {}) const;
  /// What load_state_dict would report or throw; changes nothing.
  IncompatibleKeys check_state_dict(const NamedTensors& state,
                                    const LoadOptions& options = {}) const;

  /// A model of the same kind that shares no memory with this one: values, types, devices,
  /// requires_grad, ties and modes are the same; gradients are not copied, as in Python. Nothing is
  /// drawn from the random generators. For modules, see deep_copy.h for which can be copied;
  /// functions cannot. Throws ValueError that says why, and asks for a factory.
  Model deep_copy() const;
  /// The same for any kind of model: `factory` makes a model of the same structure, which then gets
  /// everything from this one. Throws ValueError where names, shapes or ties differ, or memory is
  /// shared.
  Model deep_copy(const std::function<Model()>& factory) const;

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

/// For adapters: gives a tensor other memory, of another type or device too; all handles follow.
void replace_data(const at::Tensor& tensor, const at::Tensor& data);

/// For adapters: the tensors without undefined ones and without those that came before under
/// another name; and the names left out, of parameters first.
NamedTensors without_ties(NamedTensors tensors);
Ties ties_of(const NamedTensors& parameters, const NamedTensors& buffers);

}  // namespace bellows::nn
