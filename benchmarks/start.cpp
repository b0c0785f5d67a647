// B1: from the start of the process to the first training step of an MLP. The driver measures the
// whole process.
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "bellows/core/options.h"
#include "bellows/device/init.h"
#include "bellows/device/seed.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/adamw.h"
#include "benchmarks/measure.h"

int main() {
  using namespace bellows;
  init();
  seed_everything(0);
  Options options;
  const nn::Model model = nn::builtin_models().make("mlp", options);
  optim::AdamW optimizer(model.named_parameters());
  const at::Tensor input = at::randn({32, 784}), target = at::randint(10, {32}, at::kLong);
  const at::Tensor loss = at::cross_entropy_loss(model.forward(input).tensor(), target);
  loss.backward();
  optimizer.step();
  bench::print_result(0, loss.item<double>());
}
