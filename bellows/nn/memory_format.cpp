#include "bellows/nn/memory_format.h"

#include <ATen/ops/clone.h>

namespace bellows::nn {

void make_channels_last(const std::vector<at::Tensor>& tensors) {
  // Not contiguous(channels_last), which leaves the strides of a one-channel tensor as they are:
  // convolutions choose their format by the strides of the weight.
  for (const at::Tensor& tensor : tensors)
    if (tensor.dim() == 4) tensor.set_data(tensor.detach().clone(at::MemoryFormat::ChannelsLast));
}

}  // namespace bellows::nn
