#include "bellows/nn/from_module.h"

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/nn/copy_tensors.h"
#include "bellows/nn/load_state.h"

namespace bellows::nn {
namespace {

NamedTensors collect(const torch::OrderedDict<std::string, at::Tensor>& items) {
  NamedTensors out;
  out.reserve(items.size());
  for (const auto& item : items) out.emplace_back(item.key(), item.value());
  return out;
}

Ties ties(const torch::nn::Module& module) {
  Ties out = ties_of(collect(module.named_parameters()));
  for (auto& tie : ties_of(collect(module.named_buffers()))) out.push_back(std::move(tie));
  return out;
}

}  // namespace

OwnTensors own_tensors(const torch::nn::Module& module) {
  return {without_ties(collect(module.named_parameters())),
          without_ties(collect(module.named_buffers())), ties(module)};
}

NamedTensors state_dict(const torch::nn::Module& module, Names names) {
  OwnTensors own = own_tensors(module);
  return joined_state(std::move(own.parameters), std::move(own.buffers), own.ties, names);
}

IncompatibleKeys load_state_dict(torch::nn::Module& module, const NamedTensors& state,
                                 const LoadOptions& options) {
  const StateLoad load = plan_load(state_dict(module), ties(module), state, options);
  apply(load);
  return load.report;
}

namespace detail {

ModuleModel::ModuleModel(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {
  if (!module_) throw ValueError("from_module: got an empty module holder, expected a module");
}

NamedTensors ModuleModel::named_parameters() const {
  return without_ties(collect(module_->named_parameters()));
}
NamedTensors ModuleModel::named_buffers() const {
  return without_ties(collect(module_->named_buffers()));
}
Ties ModuleModel::ties() const {
  return nn::ties(*module_);
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

Tree UncallableModule::forward(const Tree&) {
  throw ValueError(
      "The module's forward takes other values than tensors: it can only be called as itself, not "
      "through a bellows::nn::Model. A forward(const bellows::Tree&) would allow that.");
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

}  // namespace detail
}  // namespace bellows::nn
