// Goes on with a training that Python began, and hands it back: from_python.py trains, runs this
// program and compares. Run: build/release/bin/example_from_python IN.pt OUT.pt
// Prints last: "loss <first> -> <last>".
#include <iostream>

#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/zeros.h>

#include <bellows/bellows.h>

using namespace bellows;

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  init();
  const auto parameter = [](at::IntArrayRef sizes) {
    return at::zeros(sizes).set_requires_grad(true);
  };
  const NamedTensors parameters = {{"0.weight", parameter({16, 8})},
                                   {"0.bias", parameter({16})},
                                   {"2.weight", parameter({1, 16})},
                                   {"2.bias", parameter({1})}};
  const auto forward = [p = parameters](const Tree& input) -> Tree {
    const at::Tensor hidden = at::linear(input.tensor(), p[0].second, p[1].second).relu();
    return at::linear(hidden, p[2].second, p[3].second);
  };
  const nn::Model model = nn::from_function(forward, parameters);
  optim::AdamW optimizer(model.named_parameters());

  // {"model": state_dict, "optimizer": state_dict, "inputs": tensor, "targets": tensor}
  const checkpoint::PyValue saved = checkpoint::read_torch_file(argv[1]);
  model.load_state_dict(checkpoint::flatten(saved.at("model")));
  checkpoint::load_python_optimizer(saved.at("optimizer"), optimizer);

  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    const at::Tensor output = model.forward(saved.at("inputs").tensor()).tensor();
    const at::Tensor loss = at::mse_loss(output, saved.at("targets").tensor());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }

  checkpoint::PyDict result;
  result.add("model", checkpoint::state_dict_of(model.state_dict()));
  result.add("optimizer", checkpoint::to_python_optimizer(optimizer));
  checkpoint::write_torch_file(argv[2], result);
  std::cout << "loss " << first << " -> " << last << '\n';
  return last < first ? 0 : 1;
}
