#include <iostream>
#include <memory>

#include <bellows/bellows.h>
#include <bellows/nn/convnet.h>
#include <bellows/nn/from_module.h>

using namespace bellows;

int main() {
  init();
  seed_everything(1);
  const DeviceChoice device = pick_device("auto");

  const auto images = std::make_shared<data::TensorDataset>(
      data::read_idx_dataset({.train = true, .limit = 12800}));
  const auto tests =
      std::make_shared<data::TensorDataset>(data::read_idx_dataset({.train = false}));
  const auto training = data::make_loader(
      images, std::make_shared<data::RandomSampler>(images->size(), 1), {.batch_size = 128});
  const auto evaluation = data::make_loader(
      tests, std::make_shared<data::SequentialSampler>(tests->size()), {.batch_size = 1000});

  const nn::Model model = nn::from_module(nn::ConvNet());
  optim::AdamW optimizer(model.named_parameters(), {.lr = 2e-3});
  train::Trainer trainer(model, optimizer, train::classification(),
                         {.epochs = 2, .device = device.device});
  trainer.add(std::make_shared<train::ProgressDisplay>(std::cout));
  trainer.fit(*training, evaluation.get());
  std::cout << "test accuracy " << trainer.last_values().at("test_accuracy") << " on "
            << device.reason << '\n';
}
