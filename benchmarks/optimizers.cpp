// B9: optimizer step, gradient clipping and zero_grad. Usage: bench_optimizers adamw|sgd large|many
// bellows|libtorch
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "bellows/device/init.h"
#include "bellows/device/seed.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"
#include "benchmarks/measure.h"

namespace {
using namespace bellows;

constexpr int kDigestSteps = 10, kRounds = 7, kSteps = 20;
constexpr double kMaxNorm = 1.0, kMomentum = 0.9;

struct Work {
  Work(bool large) {
    const int64_t count = large ? 10 : 600, size = large ? 1'000'000 : 16 * 1024;
    for (int64_t i = 0; i < count; ++i) {
      parameters.emplace_back("p" + std::to_string(i), at::randn({size}).requires_grad_());
    }
    for (int64_t i = 0; i < count; ++i) gradients.push_back(at::randn({size}));
  }
  void set_gradients() {
    for (size_t i = 0; i < gradients.size(); ++i)
      parameters[i].second.mutable_grad() = gradients[i];
  }
  double digest() const {
    double sum = 0;
    for (const auto& [name, value] : parameters)
      sum += value.detach().abs().sum(at::kDouble).item<double>();
    return sum;
  }
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all;
    for (const auto& [name, value] : parameters) all.push_back(value);
    return all;
  }
  NamedTensors parameters;
  std::vector<at::Tensor> gradients;
};

/// Microseconds for moving 28 bytes a parameter (AdamW reads parameter, gradient and two moments
/// and writes three of them) at the speed of a copy by all cores.
double copy_limit(int64_t parameters) {
  const int64_t bytes = 28 * parameters / 2;  // a copy reads and writes each
  const at::Tensor from = at::randn({bytes / 4}), to = at::empty({bytes / 4});
  return bench::median_microseconds(2, 7, 5, [&] { const_cast<at::Tensor&>(to).copy_(from); });
}

template <class Step>
void measure(Work& work, Step step) {
  for (int i = 0; i < kDigestSteps; ++i) step();
  const double digest = work.digest();
  const double value = bench::median_microseconds(5, kRounds, kSteps, step);
  int64_t count = 0;
  for (const auto& [name, parameter] : work.parameters) count += parameter.numel();
  bench::print_result(value, digest, copy_limit(count));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 3) {
    std::cerr << "usage: bench_optimizers adamw|sgd large|many bellows|libtorch\n";
    return 2;
  }
  init();
  seed_everything(0);
  Work work(words[1] == "large");
  const bool adamw = words[0] == "adamw";
  if (words[2] == "bellows") {
    std::unique_ptr<optim::Optimizer> optimizer;
    if (adamw) {
      optimizer = std::make_unique<optim::AdamW>(work.parameters);
    } else {
      optimizer =
          std::make_unique<optim::SGD>(work.parameters, optim::SGDOptions{.momentum = kMomentum});
    }
    measure(work, [&] {
      work.set_gradients();
      optim::clip_grad_norm_(work.parameters, kMaxNorm);
      optimizer->step();
      optimizer->zero_grad();
    });
  } else {
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (adamw) {
      optimizer = std::make_unique<torch::optim::AdamW>(work.tensors());
    } else {
      optimizer = std::make_unique<torch::optim::SGD>(
          work.tensors(), torch::optim::SGDOptions(1e-3).momentum(kMomentum));
    }
    measure(work, [&] {
      work.set_gradients();
      torch::nn::utils::clip_grad_norm_(work.tensors(), kMaxNorm);
      optimizer->step();
      optimizer->zero_grad();
    });
  }
}
