// One model on several devices of one process: each takes its part of a batch. The role of
// torch.nn.DataParallel. Several processes (DistributedDataParallel) are faster; this needs no
// launcher.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "bellows/nn/model.h"

namespace bellows::parallel {

/// Parts of every tensor of a batch along dimension 0, as many as devices or fewer: each of
/// ceil(N / devices) rows but the last. What has no rows (numbers, 0-dim tensors) is in all of
/// them. Throws ValueError for tensors of different numbers of rows, naming them.
std::vector<Tree> scatter(const Tree& batch, const std::vector<c10::Device>& devices);
/// The outputs of all parts as one, on `device`: rows joined, 0-dim tensors as a vector; what is no
/// tensor is the first part's. Differentiable. Throws ValueError for structures that differ.
Tree gather(const std::vector<Tree>& outputs, c10::Device device);

/// The model itself is the replica on the first device; the others are made once, in the
/// constructor. Each forward pass gives them the first one's parameters and buffers, scatters the
/// input, runs the replicas side by side, each in a thread, and gathers the outputs on the first
/// device. When a backward pass ends, the gradients of the replicas have been added to the model's
/// own. Train the model's parameters as ever.
///
/// Buffers, such as BatchNorm's running statistics, are the first replica's; what others make of
/// theirs is dropped. Gradients that torch::autograd::grad returns are the first replica's alone;
/// those of inputs are whole. Random numbers (dropout) are each device's own.
class DataParallel {
 public:
  using Factory = std::function<nn::Model()>;
  /// Moves the model to devices[0]. `factory`: makes a model of the same structure, for those that
  /// cannot be copied (see Model::deep_copy). Throws ValueError for no device, a device named
  /// twice, and devices of different kinds.
  DataParallel(nn::Model model, std::vector<c10::Device> devices, const Factory& factory = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// The input's tensors may be on any device. A batch of fewer rows than devices uses fewer.
  Tree operator()(const Tree& input) { return forward(input); }
  Tree forward(const Tree& input);

  /// For what takes a nn::Model: the parameters of the first replica, and this forward. It keeps
  /// the replicas alive.
  nn::Model model() const;
  const std::vector<c10::Device>& devices() const;

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace bellows::parallel
