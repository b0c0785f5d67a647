#include "bellows/optim/grouped.h"

#include <algorithm>

#include <c10/core/GradMode.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/optim/saved_state.h"
#include "bellows/optim/state_table.h"

namespace bellows::optim {
namespace {

// What is wrong with one parameter's saved state; appends complaints.
void check_state(const std::string& name, const Tree& state, const at::Tensor& parameter,
                 const std::vector<StateField>& fields, const StateNeeds& needs,
                 std::vector<std::string>& wrong) {
  for (const auto& [key, value] : state.dict()) {
    const auto field = std::ranges::find(fields, key, &StateField::name);
    const std::string label = name + "." + key;
    if (field == fields.end() || !applies(field->extent, parameter)) {
      wrong.push_back(label + " is unknown here");
    } else if (!value.is_tensor()) {
      wrong.push_back(concat(label, ": got ", value.kind(), ", expected a tensor"));
    } else if (is_number(field->extent)
                   ? value.tensor().numel() != 1
                   : value.tensor().sizes() != sizes_of(field->extent, parameter)) {
      wrong.push_back(concat(label, " has shape ", value.tensor().sizes(), ", expected ",
                             at::IntArrayRef(sizes_of(field->extent, parameter))));
    }
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    if (needs.fields[i].used && applies(fields[i].extent, parameter) &&
        !state.contains(fields[i].name)) {
      wrong.push_back(name + "." + fields[i].name + " is missing");
    }
  }
}

}  // namespace

NamedStateOptimizer::NamedStateOptimizer(const StateLayout& layout,
                                         std::vector<NamedTensors> groups)
    : table_(std::make_unique<StateTable>(layout, std::move(groups))) {}

NamedStateOptimizer::~NamedStateOptimizer() = default;

std::string_view NamedStateOptimizer::name() const {
  return table_->layout().optimizer;
}

void NamedStateOptimizer::step() {
  const c10::NoGradGuard no_grad;
  for (size_t group = 0; group < group_count(); ++group) {
    for (Batch& batch : table_->collect(group, needs(group))) update(group, batch);
    table_->release(group);
  }
  drop_autocast_casts();
}

size_t NamedStateOptimizer::group_count() const {
  return table_->group_count();
}

const NamedTensors& NamedStateOptimizer::parameters(size_t group) const {
  return table_->parameters(group);
}

Tree NamedStateOptimizer::state_dict() const {
  const std::vector<StateField>& fields = table_->layout().fields;
  Tree::List groups;
  Tree::Dict states;
  for (size_t group = 0; group < group_count(); ++group) {
    Tree::List names;
    for (size_t member = 0; member < parameters(group).size(); ++member) {
      const std::string& name = parameters(group)[member].first;
      names.emplace_back(name);
      Tree::Dict state;
      const std::vector<at::Tensor>& values = table_->state(group, member);
      for (size_t field = 0; field < values.size(); ++field) {
        if (values[field].defined()) state[fields[field].name] = values[field];
      }
      if (!state.empty()) states[name] = std::move(state);
    }
    Tree::Dict entry = options_tree(group);
    write_initial_lr(group, entry);
    entry["params"] = std::move(names);
    groups.emplace_back(std::move(entry));
  }
  return Tree::Dict{{"name", std::string(name())}, {"groups", groups}, {"state", states}};
}

void NamedStateOptimizer::load_state_dict(const Tree& state) {
  const c10::NoGradGuard no_grad;
  const std::vector<StateField>& fields = table_->layout().fields;
  const SavedState saved =
      match_saved(*this, state,
                  [&](const std::string& name, const at::Tensor& parameter, const Tree& values,
                      const Tree& options, std::vector<std::string>& wrong) {
                    check_state(name, values, parameter, fields, needs(options), wrong);
                  });
  load_options(saved.options);
  for (size_t group = 0; group < group_count(); ++group) {
    if (saved.options[group] != nullptr) read_initial_lr(group, *saved.options[group]);
    for (size_t member = 0; member < parameters(group).size(); ++member) {
      const Tree* values = saved.states[group][member];
      std::vector<at::Tensor> tensors;
      for (size_t field = 0; values != nullptr && field < fields.size(); ++field) {
        const std::string& key = fields[field].name;
        tensors.push_back(values->contains(key) ? values->at(key).tensor() : at::Tensor());
      }
      table_->set_state(group, member, tensors);
    }
  }
}

}  // namespace bellows::optim
