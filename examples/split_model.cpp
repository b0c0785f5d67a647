// A model over two devices, without a GPU: the first layers on sim:0, the rest on sim:1, backward
// through both; and what happens at the end of a device's memory. Run:
// build/release/bin/example_split_model Prints last: "loss <first> -> <last> on 2 devices".
#include <iostream>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <bellows/bellows.h>

using namespace bellows;

namespace {

struct Split {
  c10::Device first = sim::device(0), second = sim::device(1);
  torch::nn::Sequential head{torch::nn::Linear(64, 256), torch::nn::ReLU()};
  torch::nn::Sequential tail{torch::nn::Linear(256, 10)};

  Split() {
    to(*head, first);
    to(*tail, second);
  }
  at::Tensor forward(const at::Tensor& x) {
    return tail->forward(head->forward(x.to(first)).to(second));
  }
  NamedTensors parameters() {
    NamedTensors out;
    for (const auto& item : head->named_parameters())
      out.emplace_back("head." + item.key(), item.value());
    for (const auto& item : tail->named_parameters())
      out.emplace_back("tail." + item.key(), item.value());
    return out;
  }
};

}  // namespace

int main() {
  sim::enable({.devices = 2, .memory_bytes = 16 << 20});
  init();
  seed_everything(1);
  Split model;
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  const at::Tensor x = at::randn({128, 64}), y = at::randint(10, {128}, at::kLong).to(model.second);
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    const at::Tensor loss = at::cross_entropy_loss(model.forward(x), y);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  for (const auto& device : {model.first, model.second})
    std::cout << device_name(device) << ": at most " << memory_stats(device).peak_allocated / 1024
              << " KiB\n";
  try {
    at::empty({32 << 20}, at::device(model.second).dtype(at::kByte));
  } catch (const c10::OutOfMemoryError& error) {
    std::cout << error.what_without_backtrace() << '\n';
  }
  std::cout << "loss " << first << " -> " << last << " on " << sim::device_count() << " devices\n";
  return last < first / 2 ? 0 : 1;
}
