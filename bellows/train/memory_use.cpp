#include "bellows/train/memory_use.h"

#include "bellows/core/text.h"
#include "bellows/device/device.h"
#include "bellows/device/move.h"

namespace bellows::train {
namespace {

int64_t bytes_on(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || !same_device(tensor.device(), device)) return 0;
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

}  // namespace

MemoryUse memory_use(const nn::Model& model, const optim::Optimizer& optimizer,
                     c10::Device device) {
  MemoryUse use;
  for (const auto& [name, tensor] : model.named_parameters()) {
    use.parameters += bytes_on(tensor, device);
    use.gradients += bytes_on(tensor.grad(), device);
  }
  for (const auto& [name, tensor] : model.named_buffers())
    use.parameters += bytes_on(tensor, device);
  optimizer.state_dict().for_each_tensor([&](const std::string&, const at::Tensor& tensor) {
    use.optimizer += bytes_on(tensor, device);
  });
  return use;
}

std::string describe_memory(const nn::Model& model, const optim::Optimizer& optimizer,
                            c10::Device device) {
  const MemoryUse use = memory_use(model, optimizer, device);
  const auto words = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  return concat(device_name(device), " held parameters ", words(use.parameters), ", gradients ",
                words(use.gradients), ", optimizer state ", words(use.optimizer),
                "; the rest is the batch, activations and temporary tensors: a smaller batch "
                "(data.batch_size, in evaluation "
                "data.evaluation_batch_size) or model needs less");
}

}  // namespace bellows::train
