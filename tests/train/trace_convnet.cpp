// Trains `convnet` with Trainer on tensors that tests/python/trace_convnet.py made, and writes what
// came out. Usage: trace_convnet IN.safetensors OUT.safetensors sgd|adamw THREADS IN: model.<name>
// (initial weights and buffers), inputs [N,1,28,28], targets [N]. OUT: losses [steps],
// model.<name>.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include "bellows/checkpoint/safetensors.h"
#include "bellows/core/options.h"
#include "bellows/data/loader.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/device/init.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"
#include "bellows/train/trainer.h"

using namespace bellows;

namespace {

constexpr int64_t kBatch = 32;
const std::string kPrefix = "model.";

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name, const nn::Model& model) {
  if (name == "adamw") return std::make_unique<optim::AdamW>(model.named_parameters());
  return std::make_unique<optim::SGD>(
      model.named_parameters(),
      optim::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 5e-4});
}

void trace(const std::string& in, const std::string& out, const std::string& optimizer_name) {
  NamedTensors weights;
  at::Tensor inputs, targets;
  for (const auto& [name, tensor] : checkpoint::read_safetensors(in)) {
    if (name == "inputs") inputs = tensor;
    if (name == "targets") targets = tensor;
    if (name.starts_with(kPrefix)) weights.emplace_back(name.substr(kPrefix.size()), tensor);
  }
  Options options("model");
  const nn::Model model = nn::builtin_models().make("convnet", options);
  model.load_state_dict(weights);
  const auto optimizer = make_optimizer(optimizer_name, model);
  const auto dataset =
      std::make_shared<data::TensorDataset>(std::vector<at::Tensor>{inputs, targets});
  const auto loader = data::make_loader(
      dataset, std::make_shared<data::SequentialSampler>(dataset->size()), {.batch_size = kBatch});

  std::vector<double> losses;
  const auto step = train::classification();
  train::Trainer trainer(model, *optimizer, [&](const nn::Model& m, const Tree& batch) {
    auto output = step(m, batch);
    losses.push_back(output.loss.item<double>());
    return output;
  });
  trainer.fit(*loader);

  NamedTensors result{
      {"losses", at::from_blob(losses.data(), {static_cast<int64_t>(losses.size())}, at::kDouble)}};
  for (const auto& [name, tensor] : model.state_dict()) result.emplace_back(kPrefix + name, tensor);
  checkpoint::write_safetensors(out, result);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: trace_convnet IN.safetensors OUT.safetensors sgd|adamw THREADS\n";
    return 2;
  }
  init();
  at::set_num_threads(std::stoi(argv[4]));
  trace(argv[1], argv[2], argv[3]);
  return 0;
}
