// A program with a model of its own and all of `bellows train`: flags, configuration, run
// directory, resume. Run: build/release/bin/example_own_model configs/fashion-mnist.toml --set
// model.name=tiny --run runs/tiny Prints last: "test accuracy …".
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <bellows/bellows.h>
#include <bellows/nn/from_module.h>

int main(int argc, char** argv) {
  auto registry = bellows::nn::builtin_models();
  registry.add(
      "tiny",
      [](bellows::Options& options) {
        const auto width = options.get_in<int64_t>("width", 32, 1, 4096);
        return bellows::nn::from_module(torch::nn::Sequential(
            torch::nn::Flatten(), torch::nn::Linear(784, width), torch::nn::Linear(width, 10)));
      },
      "two linear layers; option width");
  return bellows::train_main(argc, argv, registry);
}
