// B12: activation recomputation in an MLP of 64 layers. Usage: bench_recompute segments|plain
#include <iostream>
#include <string>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>

#include "bellows/core/options.h"
#include "bellows/device/init.h"
#include "bellows/device/seed.h"
#include "bellows/memory/policy.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/sgd.h"
#include "benchmarks/measure.h"

namespace {
using namespace bellows;

constexpr int64_t kLayers = 64, kWidth = 512, kBatch = 256;
constexpr int kDigestSteps = 5, kRounds = 5, kSteps = 2;

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: bench_recompute segments|plain\n";
    return 2;
  }
  init();
  seed_everything(0);
  Options options;
  options.set("in_features", kWidth);
  options.set("hidden", std::vector<int64_t>(kLayers - 1, kWidth));
  options.set("classes", kWidth);
  const auto policy = std::string(argv[1]) == "plain" ? memory::CheckpointPolicy::none()
                                                      : memory::CheckpointPolicy::segments();
  const nn::Model model = memory::checkpointed(nn::builtin_models().make("mlp", options), policy);
  optim::SGD optimizer(model.named_parameters(), {.lr = 1e-2});
  const at::Tensor input = at::randn({kBatch, kWidth}), target = at::randn({kBatch, kWidth});
  const auto step = [&] {
    optimizer.zero_grad();
    const at::Tensor loss = at::mse_loss(model.forward(input).tensor(), target);
    loss.backward();
    optimizer.step();
    return loss;
  };
  at::Tensor loss;
  for (int i = 0; i < kDigestSteps; ++i) loss = step();
  const double digest = loss.item<double>();
  loss.reset();
  bench::print_result(bench::median_microseconds(1, kRounds, kSteps, step) / 1e3, digest);
}
