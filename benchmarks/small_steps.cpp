// B7: steps so small that what surrounds the kernels counts. Usage: bench_small_steps mlp
#include <iostream>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/threshold_backward.h>

#include "bellows/core/options.h"
#include "bellows/device/init.h"
#include "bellows/device/seed.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/adamw.h"
#include "benchmarks/measure.h"

namespace {
using namespace bellows;

constexpr int kDigestSteps = 100, kRounds = 9, kSteps = 500;

/// The same kernels called directly, without autograd, module or optimizer around them: what no
/// framework can beat with LibTorch's kernels.
double kernel_time(const NamedTensors& parameters, optim::Optimizer& optimizer,
                   const at::Tensor& input) {
  at::NoGradGuard no_grad;
  const at::Tensor w1 = parameters[0].second, b1 = parameters[1].second, w2 = parameters[2].second,
                   b2 = parameters[3].second, gradient = at::randn({input.size(0), w2.size(0)});
  return bench::median_microseconds(50, kRounds, kSteps, [&] {
    const at::Tensor hidden = at::relu(at::addmm(b1, input, w1.t()));
    const at::Tensor output = at::log_softmax(at::addmm(b2, hidden, w2.t()), 1);
    const at::Tensor d_output = at::_log_softmax_backward_data(gradient, output, 1, at::kFloat);
    const at::Tensor d_w2 = at::mm(d_output.t(), hidden), d_b2 = d_output.sum(0);
    const at::Tensor d_hidden = at::threshold_backward(at::mm(d_output, w2), hidden, 0);
    const at::Tensor d_w1 = at::mm(d_hidden.t(), input), d_b1 = d_hidden.sum(0);
    optimizer.step();
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || std::string(argv[1]) != "mlp") {
    std::cerr << "usage: bench_small_steps mlp\n";
    return 2;
  }
  init();
  seed_everything(0);
  Options options;
  const nn::Model model = nn::builtin_models().make("mlp", options);
  optim::AdamW optimizer(model.named_parameters());
  const at::Tensor input = at::randn({32, 784}), target = at::randint(10, {32}, at::kLong);
  const auto step = [&] {
    optimizer.zero_grad();
    const at::Tensor loss = at::cross_entropy_loss(model.forward(input).tensor(), target);
    loss.backward();
    optimizer.step();
    return loss;
  };
  at::Tensor loss;
  for (int i = 0; i < kDigestSteps; ++i) loss = step();
  const double digest = loss.item<double>();
  const double value = bench::median_microseconds(50, kRounds, kSteps, step);
  bench::print_result(value, digest, kernel_time(model.named_parameters(), optimizer, input));
}
