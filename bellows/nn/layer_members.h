// The tensors that LibTorch's own layers keep as members. Their forward uses these, not what is
// registered. For the sources of nn.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace bellows::nn {

struct LayerMember {
  const char* name;
  at::Tensor* tensor;  // in the module
};

/// Of this module alone, in an order that its type fixes; empty for other modules, and for LSTM,
/// GRU and RNN, whose members no one but they can set.
std::vector<LayerMember> layer_members(torch::nn::Module& module);

/// Makes the members of `copy`'s layers what those of `original`'s are: the tensor that is
/// registered under the same name, as after `head->weight = embed->weight`, or a copy of one that
/// is not registered. The two have the same structure. Gives what cannot be done, in words; empty:
/// nothing.
std::string copy_layer_members(torch::nn::Module& original, torch::nn::Module& copy);

}  // namespace bellows::nn
