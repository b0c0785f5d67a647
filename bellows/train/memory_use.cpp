#include "bellows/train/memory_use.h"

#include "bellows/core/text.h"
#include "bellows/device/device.h"
#include "bellows/memory/report.h"

namespace bellows::train {

MemoryUse memory_use(const nn::Model& model, const optim::Optimizer& optimizer,
                     c10::Device device) {
  const memory::Report found = memory::report(device, {.model = &model, .optimizer = &optimizer});
  return {found.parameters + found.buffers, found.gradients, found.optimizer};
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
