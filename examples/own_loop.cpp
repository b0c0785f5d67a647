// A hand-written training loop: loader, fused optimizer, clipping, metrics and checkpoint without
// Trainer. Run: build/release/bin/example_own_loop    Prints last: "loss <first> -> <last>".
#include <iostream>
#include <memory>

#include <ATen/ops/cross_entropy_loss.h>

#include <bellows/bellows.h>
#include <bellows/nn/from_module.h>
#include <bellows/nn/mlp.h>

using namespace bellows;

int main() {
  init();
  seed_everything(1);
  const auto images =
      std::make_shared<data::TensorDataset>(data::read_idx_dataset({.limit = 6400}));
  const auto loader = data::make_loader(
      images, std::make_shared<data::RandomSampler>(images->size(), 1), {.batch_size = 64});
  const nn::Model model = nn::from_module(nn::Mlp());
  optim::SGD optimizer(model.named_parameters(), {.lr = 0.05, .momentum = 0.9});

  double first = 0, last = 0;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    train::MeanMetrics metrics;
    loader->start(epoch);
    while (const auto batch = loader->next()) {
      const at::Tensor logits = model.forward(batch->data[0]).tensor();
      const at::Tensor loss = at::cross_entropy_loss(logits, batch->data[1].tensor());
      optimizer.zero_grad();
      loss.backward();
      optim::clip_grad_norm_(model.named_parameters(), 1.0);
      optimizer.step();
      metrics.add({loss, {}}, batch->samples, 0);
    }
    last = metrics.means().at("loss");
    if (epoch == 0) first = last;
    std::cout << "epoch " << epoch << " loss " << last << '\n';
  }
  checkpoint::write_safetensors("own_loop.safetensors", model.state_dict());
  std::cout << "loss " << first << " -> " << last << '\n';
  return last < first ? 0 : 1;
}
