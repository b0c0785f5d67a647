#include "bellows/optim/foreach.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

namespace bellows::optim {

TensorVector& copied(Batch& batch, const TensorVector& source, size_t work) {
  TensorVector& target = batch.work[work];
  if (&target != &source) at::_foreach_copy_(target, source);
  return target;
}

TensorVector& with_decay(Batch& batch, bool maximize, double weight_decay, size_t work) {
  if (!maximize && weight_decay == 0) return batch.gradients;
  TensorVector& changed = copied(batch, batch.gradients, work);
  if (maximize) at::_foreach_neg_(changed);
  if (weight_decay != 0) at::_foreach_add_(changed, batch.parameters, weight_decay);
  return changed;
}

double value_of(const at::Tensor& number) {
  return number.is_cpu() ? double{*number.const_data_ptr<float>()} : number.item<double>();
}

TensorVector norm_ratios(const TensorVector& a, const TensorVector& b, double scale,
                         double scale_of_a) {
  const at::Tensor norms_a = at::stack(at::_foreach_norm(a));
  const at::Tensor norms_b = at::stack(at::_foreach_norm(b));
  const at::Tensor denominator = norms_b.add(norms_a, scale_of_a);
  const at::Tensor both = at::logical_and(norms_a.gt(0), norms_b.gt(0));
  return at::where(both, norms_a.div(denominator).mul_(scale), at::ones_like(norms_a)).unbind();
}

}  // namespace bellows::optim
