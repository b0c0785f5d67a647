#include "bellows/amp/master_weights.h"

#include <map>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>

#include "bellows/amp/autocast.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::amp {

MasterWeights::MasterWeights(const NamedTensors& parameters, const Make& make) {
  std::map<std::string, at::Tensor> by_name;
  NamedTensors masters;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.defined() || !at::isFloatingType(parameter.scalar_type())) {
      throw ValueError(
          concat("MasterWeights: parameter '", name, "' is ",
                 parameter.defined() ? at::toString(parameter.scalar_type()) : "undefined",
                 ", expected a floating-point tensor"));
    }
    if (!by_name.emplace(name, parameter).second)
      throw ValueError("MasterWeights: got two parameters named '" + name + "'");
    at::Tensor master = parameter;
    if (parameter.scalar_type() == at::kHalf || parameter.scalar_type() == at::kBFloat16) {
      master = parameter.detach().to(at::kFloat).requires_grad_(parameter.requires_grad());
      entries_.push_back({name, parameter, master, parameter._version()});
    }
    masters.emplace_back(name, master);
  }
  const std::map<std::string, at::Tensor> expected(masters.begin(), masters.end());
  optimizer_ = make(masters);
  if (!optimizer_) throw ValueError("MasterWeights: `make` gave no optimizer");
  for (size_t group = 0; group < optimizer_->group_count(); ++group) {
    NamedTensors& own = groups_.emplace_back();
    for (const auto& [name, master] : optimizer_->parameters(group)) {
      const auto found = expected.find(name);
      if (found == expected.end() || !found->second.is_same(master)) {
        throw ValueError("MasterWeights: the optimizer's parameter '" + name +
                         "' is none of the masters that `make` was given; make it of those");
      }
      own.emplace_back(name, by_name.at(name));
    }
  }
}

const NamedTensors& MasterWeights::parameters(size_t group) const {
  static_cast<void>(optimizer_->parameters(group));  // throws where there is no such group
  return groups_[group];
}

// The master to where the parameter is now, and to its value where others have changed that.
void MasterWeights::follow(Entry& entry) {
  if (entry.master.device() != entry.parameter.device())
    entry.master.set_data(entry.master.detach().to(entry.parameter.device()));
  if (entry.parameter._version() == entry.version) return;
  const at::Tensor value = entry.parameter.detach();
  if (!at::equal(entry.master.detach().to(value.scalar_type()), value)) entry.master.copy_(value);
  entry.version = entry.parameter._version();
}

void MasterWeights::copy_back(const std::vector<Entry*>& entries) {
  if (entries.empty()) return;
  std::vector<at::Tensor> to, from;
  for (const Entry* entry : entries) {
    to.push_back(entry->parameter);
    from.push_back(entry->master);
  }
  at::_foreach_copy_(to, from);
  for (Entry* entry : entries) entry->version = entry->parameter._version();
  clear_autocast_cache();
}

void MasterWeights::step() {
  const c10::NoGradGuard no_grad;
  std::vector<Entry*> stepping;
  std::vector<at::Tensor> to, from;
  for (Entry& entry : entries_) {
    follow(entry);
    const at::Tensor& gradient = entry.parameter.grad();
    if (!gradient.defined()) continue;
    entry.master.mutable_grad() = at::empty_like(entry.master, entry.master.options());
    stepping.push_back(&entry);
    to.push_back(entry.master.grad());
    from.push_back(gradient);
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
  optimizer_->step();
  for (Entry* entry : stepping) entry->master.mutable_grad().reset();
  copy_back(stepping);
}

Tree MasterWeights::state_dict() const {
  Tree::Dict masters;
  for (const Entry& entry : entries_) masters[entry.name] = entry.master.detach();
  return Tree::Dict{{"name", std::string(name())},
                    {"optimizer", optimizer_->state_dict()},
                    {"masters", std::move(masters)}};
}

void MasterWeights::load_state_dict(const Tree& state) {
  const c10::NoGradGuard no_grad;
  const std::string saved = state.at("name").string();
  if (saved != name()) {
    throw ValueError("MasterWeights: got the state of '" + saved +
                     "', which has no float32 masters; resume with the precision of that run");
  }
  const Tree& masters = state.at("masters");
  std::vector<std::string> wrong;
  std::map<std::string, bool> known;
  for (const Entry& entry : entries_) {
    known[entry.name] = true;
    if (!masters.contains(entry.name)) {
      wrong.push_back(entry.name + " is missing");
    } else if (const Tree& value = masters.at(entry.name);
               !value.is_tensor() || value.tensor().sizes() != entry.master.sizes()) {
      wrong.push_back(concat(
          entry.name, ": got ",
          value.is_tensor() ? concat("shape ", value.tensor().sizes()) : std::string(value.kind()),
          ", expected shape ", entry.master.sizes()));
    }
  }
  for (const auto& [key, value] : masters.dict()) {
    if (!known.contains(key)) wrong.push_back(key + " is unknown");
  }
  if (!wrong.empty()) throw ValueError("MasterWeights: masters: " + join(wrong));
  optimizer_->load_state_dict(state.at("optimizer"));
  std::vector<Entry*> all;
  for (Entry& entry : entries_) {
    follow(entry);
    entry.master.copy_(masters.at(entry.name).tensor());
    all.push_back(&entry);
  }
  copy_back(all);
}

}  // namespace bellows::amp
