// B2 and B13: what several ranks cost. Usage, under a launcher: bench_ranks start | convnet |
// resnet18
#include <iostream>
#include <string>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "bellows/core/options.h"
#include "bellows/device/init.h"
#include "bellows/device/seed.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/sgd.h"
#include "bellows/parallel/distributed_data_parallel.h"
#include "bellows/parallel/init.h"
#include "benchmarks/measure.h"

namespace {
using namespace bellows;

constexpr int kDigestSteps = 3, kRounds = 5, kSteps = 6;

int start(const parallel::Group& group) {
  const double sum = group.all_reduced(at::full({1}, group.rank() + 1.0)).item<double>();
  if (group.rank() == 0) bench::print_result(0, sum);
  group.close();
  return 0;
}

int train(const parallel::Group& group, const std::string& name) {
  seed_everything(0);
  Options options;
  if (name == "resnet18") options.set("classes", int64_t{10});
  const nn::Model model = nn::builtin_models().make(name, options);
  parallel::DdpCore ddp(model, group);
  const nn::Model wrapped = ddp.model();
  optim::SGD optimizer(model.named_parameters(), {.lr = 0.01});
  seed_everything(1 + static_cast<uint64_t>(group.rank()));
  const bool large = name == "resnet18";
  const at::Tensor input = large ? at::randn({16, 3, 32, 32}) : at::randn({16, 1, 28, 28});
  const at::Tensor target = at::randint(10, {16}, at::kLong);
  const auto step = [&](const nn::Model& on) {
    optimizer.zero_grad();
    const at::Tensor loss = at::cross_entropy_loss(on.forward(input).tensor(), target);
    loss.backward();
    optimizer.step();
    return loss;
  };
  at::Tensor loss;
  for (int i = 0; i < kDigestSteps; ++i) loss = step(wrapped);
  const double digest = group.all_reduced(loss.detach()).item<double>();
  const double value = bench::median_microseconds(2, kRounds, kSteps, [&] { step(wrapped); });
  group.barrier();
  const double alone = bench::median_microseconds(1, kRounds, kSteps, [&] { step(model); });
  if (group.rank() == 0) bench::print_result(value, digest, alone);
  group.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  if (what != "start" && what != "convnet" && what != "resnet18") {
    std::cerr << "usage: bench_ranks start | convnet | resnet18\n";
    return 2;
  }
  init();
  const parallel::Group group = parallel::init({.backend = "gloo"});
  return what == "start" ? start(group) : train(group, what);
}
