#include "bellows/nn/from_module.h"

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::nn::detail {
namespace {

NamedTensors collect(const torch::OrderedDict<std::string, at::Tensor>& items) {
  NamedTensors out;
  out.reserve(items.size());
  for (const auto& item : items) out.emplace_back(item.key(), item.value());
  return without_ties(std::move(out));
}

}  // namespace

ModuleModel::ModuleModel(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {
  if (!module_) throw ValueError("from_module: got an empty module holder, expected a module");
}

NamedTensors ModuleModel::named_parameters() const {
  return collect(module_->named_parameters());
}
NamedTensors ModuleModel::named_buffers() const {
  return collect(module_->named_buffers());
}
void ModuleModel::train(bool on) {
  module_->train(on);
}
bool ModuleModel::is_training() const {
  return module_->is_training();
}

void ModuleModel::to(c10::Device device) {
  if (!device.is_meta()) module_->to(device);
  move_in_place(named_parameters(), device);
  move_in_place(named_buffers(), device);
}

const at::Tensor& argument(std::span<const Tree> arguments, size_t index) {
  const Tree& value = arguments[index];
  if (!value.is_tensor())
    throw ValueError(concat("Argument ", index, " of forward: got ", value.kind(),
                            ", expected a tensor. A module that takes other values declares "
                            "forward(const bellows::Tree&)."));
  return value.tensor();
}

void refuse_count(const torch::nn::Module& module, size_t got,
                  const std::vector<size_t>& accepted) {
  std::vector<std::string> counts;
  for (size_t count : accepted) counts.push_back(std::to_string(count));
  throw ValueError(concat("forward of ", module.name(), ": got ", got, " arguments, expected ",
                          join(counts, " or "), "."));
}

}  // namespace bellows::nn::detail
