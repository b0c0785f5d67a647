#include "bellows/optim/adamw.h"

#include <cmath>
#include <limits>

#include <ATen/ops/_fused_adamw.h>
#include <c10/core/GradMode.h>

#include "bellows/optim/state_table.h"

namespace bellows::optim {

AdamW::AdamW(NamedTensors parameters, AdamWOptions options)
    : AdamW(std::vector<ParamGroup<AdamWOptions>>{{std::move(parameters), options}}) {}

AdamW::AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups)
    : GroupedOptimizer("AdamW", groups, {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}) {}

void AdamW::step() {
  const c10::NoGradGuard no_grad;
  for (size_t group = 0; group < group_count(); ++group) {
    const AdamWOptions& own = options(group);
    for (Batch& batch : table_->collect(group, field_count(own))) {
      const at::TensorList maxima = own.amsgrad ? at::TensorList(batch.state[3]) : at::TensorList();
      advance(batch.state[0]);
      at::_fused_adamw_(batch.parameters, batch.gradients, batch.state[1], batch.state[2], maxima,
                        batch.state[0], own.lr, own.betas[0], own.betas[1], own.weight_decay,
                        own.eps, own.amsgrad, own.maximize);
    }
    table_->release(group);
  }
  drop_autocast_casts();
}

void check(const AdamWOptions& options) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double below_one = std::nextafter(1.0, 0.0);
  check_range("AdamW", "lr", options.lr, 0, kInfinity);
  check_range("AdamW", "betas[0]", options.betas[0], 0, below_one);
  check_range("AdamW", "betas[1]", options.betas[1], 0, below_one);
  check_range("AdamW", "eps", options.eps, 0, kInfinity);
  check_range("AdamW", "weight_decay", options.weight_decay, 0, kInfinity);
}

Tree::Dict to_tree(const AdamWOptions& options) {
  return {{"lr", options.lr},           {"betas", Tree::List{options.betas[0], options.betas[1]}},
          {"eps", options.eps},         {"weight_decay", options.weight_decay},
          {"amsgrad", options.amsgrad}, {"maximize", options.maximize}};
}

void from_tree(const Tree& saved, AdamWOptions& options) {
  options = {.lr = saved.at("lr").number(),
             .betas = {saved.at("betas")[0].number(), saved.at("betas")[1].number()},
             .eps = saved.at("eps").number(),
             .weight_decay = saved.at("weight_decay").number(),
             .amsgrad = saved.at("amsgrad").boolean(),
             .maximize = saved.at("maximize").boolean()};
}

size_t field_count(const AdamWOptions& options) {
  return options.amsgrad ? 4 : 3;
}

}  // namespace bellows::optim
