#include "bellows/optim/sgd.h"

#include <cmath>
#include <limits>

#include <ATen/ops/_fused_sgd.h>
#include <c10/core/GradMode.h>

#include "bellows/core/error.h"
#include "bellows/optim/state_table.h"

namespace bellows::optim {

SGD::SGD(NamedTensors parameters, SGDOptions options)
    : SGD(std::vector<ParamGroup<SGDOptions>>{{std::move(parameters), options}}) {}

SGD::SGD(const std::vector<ParamGroup<SGDOptions>>& groups)
    : GroupedOptimizer("SGD", groups, {"momentum_buffer"}) {}

void SGD::step() {
  const c10::NoGradGuard no_grad;
  for (size_t group = 0; group < group_count(); ++group) {
    const SGDOptions& own = options(group);
    for (Batch& batch : table_->collect(group, field_count(own))) {
      const at::TensorList momentum =
          batch.state.empty() ? at::TensorList() : at::TensorList(batch.state[0]);
      at::_fused_sgd_(batch.parameters, batch.gradients, momentum, own.weight_decay, own.momentum,
                      own.lr, own.dampening, own.nesterov, own.maximize, batch.fresh);
    }
    table_->release(group);
  }
  drop_autocast_casts();
}

void check(const SGDOptions& options) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  check_range("SGD", "lr", options.lr, 0, kInfinity);
  check_range("SGD", "momentum", options.momentum, 0, kInfinity);
  check_range("SGD", "dampening", options.dampening, -kInfinity, kInfinity);
  check_range("SGD", "weight_decay", options.weight_decay, 0, kInfinity);
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0)) {
    throw ValueError("SGD: nesterov: got true, which needs a momentum above 0 and no dampening");
  }
}

Tree::Dict to_tree(const SGDOptions& options) {
  return {{"lr", options.lr},
          {"momentum", options.momentum},
          {"dampening", options.dampening},
          {"weight_decay", options.weight_decay},
          {"nesterov", options.nesterov},
          {"maximize", options.maximize}};
}

void from_tree(const Tree& saved, SGDOptions& options) {
  options = {.lr = saved.at("lr").number(),
             .momentum = saved.at("momentum").number(),
             .dampening = saved.at("dampening").number(),
             .weight_decay = saved.at("weight_decay").number(),
             .nesterov = saved.at("nesterov").boolean(),
             .maximize = saved.at("maximize").boolean()};
}

size_t field_count(const SGDOptions& options) {
  return options.momentum == 0 ? 0 : 1;
}

}  // namespace bellows::optim
