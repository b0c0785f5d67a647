#include "bellows/parallel/local_sgd.h"

#include <vector>

#include <ATen/core/grad_mode.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/parallel/exchange.h"

namespace bellows::parallel {

PostLocalSgd::PostLocalSgd(PostLocalSgdOptions options) : options_(std::move(options)) {
  if (options_.start_local_sgd_iter < 0)
    throw ValueError(concat("PostLocalSgd: start_local_sgd_iter: got ",
                            options_.start_local_sgd_iter, ", expected 0 or more"));
}

CommHook PostLocalSgd::hook() const {
  return [options = options_, iteration = iteration_, mean = all_reduce_hook()](
             const Group& group, GradBucket& bucket) {
    const bool local = *iteration >= options.start_local_sgd_iter;
    if (bucket.is_last) ++*iteration;
    if (!local) return mean(group, bucket);
    if (!options.subgroup) return Reduction(Work(), bucket);
    bucket.divisor = options.subgroup->size();
    return mean(*options.subgroup, bucket);
  };
}

Tree PostLocalSgd::state_dict() const {
  return Tree::Dict{{"iteration", *iteration_}};
}
void PostLocalSgd::load_state_dict(const Tree& state) {
  *iteration_ = state.at("iteration").integer();
}

PeriodicModelAverager::PeriodicModelAverager(Group group, int64_t period, int64_t warmup_steps)
    : group_(std::move(group)), period_(period), warmup_steps_(warmup_steps) {
  if (period < 1)
    throw ValueError(concat("PeriodicModelAverager: period: got ", period, ", expected 1 or more"));
  if (warmup_steps < 0)
    throw ValueError(
        concat("PeriodicModelAverager: warmup_steps: got ", warmup_steps, ", expected 0 or more"));
}

bool PeriodicModelAverager::average_parameters(const NamedTensors& parameters) {
  const int64_t past = step_++ - warmup_steps_;
  if (past < 0 || past % period_ != 0) return false;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : parameters) tensors.push_back(tensor);
  average_tensors(group_, tensors);
  return true;
}

Tree PeriodicModelAverager::state_dict() const {
  return Tree::Dict{{"step", step_}};
}
void PeriodicModelAverager::load_state_dict(const Tree& state) {
  step_ = state.at("step").integer();
}

}  // namespace bellows::parallel
