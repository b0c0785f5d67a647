// Trains `convnet` in DistributedDataParallel, ranks as threads, on tensors that
// tests/python/ddp_trace.py made, and writes what came out.
// Usage: trace_ddp IN.safetensors OUT.safetensors sgd|adamw MODE RANKS
// MODE: plain, view, accumulate, fp16, powersgd. IN: model.<name> (initial weights and buffers),
// inputs [N,1,28,28], targets [N]. OUT: losses [ranks, steps], model.<name> of rank 0.
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>

#include "bellows/checkpoint/safetensors.h"
#include "bellows/core/options.h"
#include "bellows/device/init.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"
#include "bellows/parallel/distributed_data_parallel.h"
#include "bellows/parallel/init.h"
#include "bellows/parallel/power_sgd.h"

using namespace bellows;

namespace {

constexpr int64_t kBatch = 16;  // of each rank
const std::string kPrefix = "model.";

struct Run {
  std::string optimizer, mode;
  NamedTensors weights = {};
  at::Tensor inputs = {}, targets = {};
  at::Tensor losses = {};
  NamedTensors result = {};
};

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name, const nn::Model& model) {
  if (name == "adamw") return std::make_unique<optim::AdamW>(model.named_parameters());
  return std::make_unique<optim::SGD>(
      model.named_parameters(),
      optim::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 5e-4});
}

void train(Run& run, const parallel::Group& group) {
  Options options("model");
  const nn::Model model = nn::builtin_models().make("convnet", options);
  if (group.rank() == 0) model.load_state_dict(run.weights);
  const parallel::PowerSgd power({.matrix_approximation_rank = 2, .start_power_sgd_iter = 3});
  parallel::DdpOptions ddp_options{.gradient_as_bucket_view = run.mode == "view"};
  if (run.mode != "plain" && run.mode != "powersgd") ddp_options.bucket_cap_mb = 0.125;
  if (run.mode == "fp16") ddp_options.comm_hook = parallel::fp16_compress_hook();
  if (run.mode == "powersgd") ddp_options.comm_hook = power.hook();
  parallel::DistributedDataParallel ddp(model, group, ddp_options);
  const auto optimizer = make_optimizer(run.optimizer, model);
  const int64_t steps = run.losses.size(1);
  for (int64_t step = 0; step < steps; ++step) {
    const bool accumulate = run.mode == "accumulate" && step % 2 == 0;
    if (run.mode != "accumulate" || accumulate) optimizer->zero_grad(run.mode != "view");
    std::optional<parallel::DdpCore::NoSync> no_sync;
    if (accumulate) no_sync.emplace(ddp.state());
    const int64_t begin = (step * group.size() + group.rank()) * kBatch;
    const at::Tensor loss = at::cross_entropy_loss(
        ddp(run.inputs.narrow(0, begin, kBatch)).tensor(), run.targets.narrow(0, begin, kBatch));
    run.losses[group.rank()][step] = loss.detach().to(at::kDouble);
    loss.backward();
    if (!accumulate) optimizer->step();
  }
  if (group.rank() != 0) return;
  for (const auto& [name, tensor] : model.state_dict())
    run.result.emplace_back(kPrefix + name, tensor);
}

void trace(const std::string& in, const std::string& out, Run run, int64_t ranks) {
  for (const auto& [name, tensor] : checkpoint::read_safetensors(in)) {
    if (name == "inputs") run.inputs = tensor;
    if (name == "targets") run.targets = tensor;
    if (name.starts_with(kPrefix)) run.weights.emplace_back(name.substr(kPrefix.size()), tensor);
  }
  run.losses = at::zeros({ranks, run.inputs.size(0) / (ranks * kBatch)}, at::kDouble);
  parallel::run_threads(ranks, [&](const parallel::Group& group) { train(run, group); });
  run.result.emplace_back("losses", run.losses);
  checkpoint::write_safetensors(out, run.result);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: trace_ddp IN.safetensors OUT.safetensors sgd|adamw MODE RANKS\n";
    return 2;
  }
  init();
  at::set_num_threads(1);
  trace(argv[1], argv[2], {.optimizer = argv[3], .mode = argv[4]}, std::stoi(argv[5]));
  return 0;
}
