#include "tests/conformance/workloads.h"

#include <functional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "bellows/core/options.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"

namespace bellows::conformance {
namespace {

constexpr int64_t kBatch = 8, kClasses = 10;

void backward(const at::Tensor& loss) {
  (loss.dim() == 0 ? loss : loss.sum()).backward();
}

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{"mlp", "convnet", "resnet18", "lstm", "transformer"};
  return names;
}

nn::Model make_model(const std::string& name, uint64_t seed) {
  Options options("model");
  if (name == "resnet18") options.set("classes", kClasses);
  if (name == "lstm") {
    options.set("layers", int64_t{2});
    options.set("hidden", int64_t{32});
    options.set("bidirectional", true);
  }
  at::manual_seed(seed);
  nn::Model model = nn::builtin_models().make(name, options);
  options.reject_unknown();
  return model;
}

at::Tensor make_input(const std::string& model, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  if (model == "resnet18") return at::randn({kBatch, 3, 32, 32}, generator);
  return at::randn({kBatch, 1, 28, 28}, generator);
}

at::Tensor make_target(uint64_t seed) {
  return at::randint(kClasses, {kBatch}, at::detail::createCPUGenerator(seed), at::kLong);
}

void run_model(const std::string& name, c10::Device device) {
  const nn::Model model = make_model(name, 1);
  model.to(device);
  const at::Tensor input = make_input(name, 2).to(device), target = make_target(3).to(device);
  optim::AdamW optimizer(model.named_parameters());
  at::cross_entropy_loss(model.forward(input).tensor(), target).backward();
  optimizer.step();
  optimizer.zero_grad();
  model.eval();
  const at::NoGradGuard no_grad;
  at::argmax(model.forward(input).tensor(), 1).eq(target).mean(at::kFloat).item<float>();
}

void run_losses(c10::Device device) {
  using Loss = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;
  const std::vector<Loss> losses{
      [](auto& x, auto&, auto& t) { return at::cross_entropy_loss(x, t); },
      [](auto& x, auto&, auto& t) {
        return at::cross_entropy_loss(x, t, {}, at::Reduction::Sum, 1, 0.1);
      },
      [](auto& x, auto&, auto& t) { return at::nll_loss(at::log_softmax(x, 1), t); },
      [](auto& x, auto& y, auto&) { return at::mse_loss(x, y); },
      [](auto& x, auto& y, auto&) { return at::mse_loss(x, y, at::Reduction::None); },
      [](auto& x, auto& y, auto&) { return at::l1_loss(x, y); },
      [](auto& x, auto& y, auto&) { return at::smooth_l1_loss(x, y); },
      [](auto& x, auto& y, auto&) { return at::huber_loss(x, y); },
      [](auto& x, auto& y, auto&) { return at::binary_cross_entropy(at::sigmoid(x), y); },
      [](auto& x, auto& y, auto&) { return at::binary_cross_entropy_with_logits(x, y); },
      [](auto& x, auto& y, auto&) { return at::kl_div(at::log_softmax(x, 1), at::softmax(y, 1)); },
      [](auto& x, auto& y, auto&) { return at::cosine_similarity(x, y); },
      [](auto& x, auto& y, auto&) { return at::soft_margin_loss(x, y); },
      [](auto& x, auto& y, auto&) { return at::triplet_margin_loss(x, y, at::neg(y)); },
  };
  const at::Tensor y = at::rand({kBatch, kClasses}, at::detail::createCPUGenerator(2)).to(device);
  const at::Tensor target = make_target(3).to(device);
  for (const Loss& loss : losses) {
    const at::Tensor x = at::randn({kBatch, kClasses}, at::detail::createCPUGenerator(1))
                             .to(device)
                             .requires_grad_();
    backward(loss(x, y, target));
  }
}

void run_optimizers(c10::Device device) {
  const auto with_gradients = [&] {
    NamedTensors parameters;
    for (int i = 0; i < 2; ++i) {
      at::Tensor value =
          at::randn({5, 3 + i}, at::detail::createCPUGenerator(7)).to(device).requires_grad_();
      value.mutable_grad() = at::randn({5, 3 + i}, at::detail::createCPUGenerator(8)).to(device);
      parameters.emplace_back("p" + std::to_string(i), value);
    }
    return parameters;
  };
  const auto twice = [](auto&& optimizer) {
    optimizer.step();
    optimizer.step();
    optimizer.zero_grad(false);
  };
  twice(optim::AdamW(with_gradients(), {.amsgrad = true, .maximize = true}));
  twice(optim::SGD(with_gradients(), {.lr = 0.1}));
  twice(optim::SGD(with_gradients(),
                   {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}));
  optim::clip_grad_norm_(with_gradients(), 0.1);

  const auto tensors = [&] {
    std::vector<at::Tensor> out;
    for (const auto& [name, value] : with_gradients()) out.push_back(value);
    return out;
  };
  twice(torch::optim::SGD(
      tensors(), torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1)));
  twice(torch::optim::Adam(tensors(),
                           torch::optim::AdamOptions(0.1).amsgrad(true).weight_decay(0.1)));
  twice(torch::optim::AdamW(tensors(), torch::optim::AdamWOptions(0.1).amsgrad(true)));
  twice(torch::optim::RMSprop(
      tensors(), torch::optim::RMSpropOptions(0.1).centered(true).momentum(0.5).weight_decay(0.1)));
  twice(torch::optim::Adagrad(tensors(),
                              torch::optim::AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.1)));
}

void run_all(c10::Device device) {
  for (const std::string& name : model_names()) run_model(name, device);
  run_losses(device);
  run_optimizers(device);
}

}  // namespace bellows::conformance
