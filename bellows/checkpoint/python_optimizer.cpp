#include "bellows/checkpoint/python_optimizer.h"

#include <algorithm>
#include <array>
#include <map>

#include <ATen/ops/scalar_tensor.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

// Options that Python's groups have and ours lack, as fused=True implies them.
struct Fixed {
  std::string_view key;
  PyValue value;
};

struct Kind {
  std::string_view name;
  std::vector<std::string_view> options;  // the same in both
  std::vector<std::string_view> state;
  std::vector<Fixed> fixed;
};

const std::array<Kind, 2>& kinds() {
  static const std::array<Kind, 2> all = {{
      {.name = "SGD",
       .options = {"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"},
       .state = {"momentum_buffer"},
       .fixed = {{"foreach", {}}, {"differentiable", false}, {"fused", true}}},
      {.name = "AdamW",
       .options = {"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"},
       .state = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
       .fixed = {{"foreach", {}},
                 {"capturable", false},
                 {"differentiable", false},
                 {"fused", true},
                 {"decoupled_weight_decay", true}}},
  }};
  return all;
}

const Kind& kind_of(const optim::Optimizer& optimizer) {
  const auto* const found = std::ranges::find(kinds(), optimizer.name(), &Kind::name);
  if (found != kinds().end()) return *found;
  throw ValueError(concat("Python's optimizer state: got an optimizer ", optimizer.name(),
                          ", expected SGD or AdamW"));
}

[[noreturn]] void refuse(const Kind& kind, const std::string& what) {
  throw ValueError(concat("Python's optimizer state for ", kind.name, ": ", what));
}

// One group's options as ours; a tensor (lr may be one) becomes its number.
Tree::Dict options_of(const Kind& kind, const PyDict& group) {
  Tree::Dict options;
  for (const std::string_view key : kind.options) {
    const PyValue* value = group.find(key);
    if (value == nullptr) {
      refuse(kind, concat("a group has no '", key, "'; it is that of another optimizer"));
    }
    if (value->is<at::Tensor>() && value->tensor().numel() == 1) {
      options.emplace(key, value->tensor().item().toDouble());
    } else {
      options.emplace(key, to_tree(*value));
    }
  }
  const PyValue* decoupled = group.find("decoupled_weight_decay");
  if (kind.name == "AdamW" && decoupled != nullptr && !decoupled->boolean()) {
    refuse(kind, "it is that of Adam, whose weight decay is another");
  }
  return options;
}

// The names of a group's numbered parameters.
std::vector<std::string> names_of(const Kind& kind, const PyDict& group, size_t index,
                                  const NamedTensors& parameters,
                                  std::map<int64_t, std::string>& by_number) {
  const PyValue* numbers = group.find("params");
  if (numbers == nullptr) refuse(kind, "a group has no 'params'");
  if (numbers->items().size() != parameters.size()) {
    refuse(kind, concat("group ", index, " has ", numbers->items().size(), " parameters, expected ",
                        parameters.size()));
  }
  const PyValue* saved_names = group.find("param_names");
  std::vector<std::string> names;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].first;
    if (saved_names != nullptr && saved_names->items().at(i).string() != name) {
      refuse(kind, concat("parameter ", i, " of group ", index, " is '",
                          saved_names->items()[i].string(), "', expected '", name, "'"));
    }
    by_number[numbers->items()[i].integer()] = name;
    names.push_back(name);
  }
  return names;
}

// One parameter's state as ours.
Tree::Dict state_of(const Kind& kind, const std::string& name, const PyDict& state) {
  Tree::Dict own;
  for (const auto& [key, value] : state.items) {
    if (value.is_none()) continue;  // SGD without momentum
    const bool known = std::ranges::find(kind.state, key.string()) != kind.state.end();
    if (!known) {
      refuse(kind, concat("'", name, "' has '", key.string(), "', which ", kind.name, " lacks"));
    }
    const bool count = value.is<int64_t>() || value.is<double>();  // before PyTorch 1.12
    own.emplace(key.string(), count ? Tree(at::scalar_tensor(value.number())) : to_tree(value));
  }
  return own;
}

}  // namespace

PyValue to_python_optimizer(const optim::Optimizer& optimizer) {
  const Kind& kind = kind_of(optimizer);
  const Tree tree = optimizer.state_dict();
  const Tree::Dict& states = tree.at("state").dict();
  PyDict by_number;
  PyList groups;
  int64_t number = 0;
  for (const Tree& group : tree.at("groups").list()) {
    PyDict options;
    for (const std::string_view key : kind.options) {
      PyValue value = from_tree(group.at(key));
      if (key == "betas") value = PyTuple{value.items()};
      options.add(std::string(key), std::move(value));
    }
    for (const auto& [key, value] : kind.fixed) options.add(std::string(key), value);
    PyList numbers;
    for (const Tree& name : group.at("params").list()) {
      const auto state = states.find(name.string());
      if (state != states.end()) {
        PyDict fields;
        for (const std::string_view key : kind.state) {
          if (state->second.contains(key)) {
            fields.add(std::string(key), state->second.at(key).tensor());
          }
        }
        by_number.add(number, std::move(fields));
      }
      numbers.push_back(number++);
    }
    options.add("params", std::move(numbers));
    groups.push_back(std::move(options));
  }
  PyDict result;
  result.add("state", std::move(by_number));
  result.add("param_groups", std::move(groups));
  return result;
}

void load_python_optimizer(const PyValue& state, optim::Optimizer& optimizer) {
  const Kind& kind = kind_of(optimizer);
  const PyList& groups = state.at("param_groups").items();
  if (groups.size() != optimizer.group_count()) {
    refuse(kind, concat("it has ", groups.size(), " groups, expected ", optimizer.group_count()));
  }
  std::map<int64_t, std::string> by_number;
  Tree::List own_groups;
  for (size_t i = 0; i < groups.size(); ++i) {
    Tree::Dict group = options_of(kind, groups[i].dict());
    Tree::List names;
    for (std::string& name :
         names_of(kind, groups[i].dict(), i, optimizer.parameters(i), by_number)) {
      names.emplace_back(std::move(name));
    }
    group.emplace("params", std::move(names));
    own_groups.emplace_back(std::move(group));
  }
  Tree::Dict states;
  for (const auto& [number, fields] : state.at("state").dict().items) {
    const auto name = by_number.find(number.integer());
    if (name == by_number.end()) {
      refuse(kind,
             concat("it has a state for parameter ", number.integer(), ", which is in no group"));
    }
    Tree::Dict own = state_of(kind, name->second, fields.dict());
    if (!own.empty()) states.emplace(name->second, std::move(own));
  }
  optimizer.load_state_dict(Tree::Dict{{"name", std::string(kind.name)},
                                       {"groups", std::move(own_groups)},
                                       {"state", std::move(states)}});
}

}  // namespace bellows::checkpoint
