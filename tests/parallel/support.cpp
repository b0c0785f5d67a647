#include "tests/parallel/support.h"

#include <numeric>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"

namespace bellows::parallel::test {

at::Tensor numbers(std::vector<int64_t> sizes, int64_t seed, at::ScalarType type) {
  const int64_t count =
      std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  const at::Tensor places = at::arange(count, at::kDouble);
  return (places * 12.9898 + static_cast<double>(seed) * 78.233).sin().view(sizes).to(type);
}

at::Tensor parameter(std::vector<int64_t> sizes, int64_t seed, at::ScalarType type) {
  return numbers(std::move(sizes), seed, type).mul_(0.5).requires_grad_();
}

nn::Model make_net(int64_t seed, at::ScalarType type) {
  const at::Tensor w1 = parameter({8, kIn}, seed, type), b1 = parameter({8}, seed + 1, type);
  const at::Tensor w2 = parameter({kOut, 8}, seed + 2, type),
                   b2 = parameter({kOut}, seed + 3, type);
  return nn::from_function(
      [=](const Tree& input) -> Tree {
        return at::linear(at::tanh(at::linear(input.tensor(), w1, b1)), w2, b2);
      },
      {{"first.weight", w1}, {"first.bias", b1}, {"second.weight", w2}, {"second.bias", b2}});
}

Batch Batch::part(int64_t rank, int64_t ranks) const {
  const int64_t rows = x.size(0) / ranks;
  return {x.narrow(0, rank * rows, rows), y.narrow(0, rank * rows, rows)};
}

Batch make_batch(int64_t step, int64_t rows, at::ScalarType type) {
  return {numbers({rows, kIn}, 100 + 2 * step, type), numbers({rows, kOut}, 101 + 2 * step, type)};
}

at::Tensor mean_square(const Tree& output, const at::Tensor& y) {
  return (output.tensor() - y).square().mean();
}

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name, const nn::Model& model) {
  if (name == "adamw")
    return std::make_unique<optim::AdamW>(model.named_parameters(),
                                          optim::AdamWOptions{.lr = 1e-2});
  if (name == "plain")
    return std::make_unique<optim::SGD>(model.named_parameters(), optim::SGDOptions{.lr = 0.1});
  return std::make_unique<optim::SGD>(
      model.named_parameters(),
      optim::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3});
}

NamedTensors values_of(const nn::Model& model) {
  NamedTensors out;
  for (const auto& [name, tensor] : model.named_parameters())
    out.emplace_back(name, tensor.detach().clone());
  return out;
}

NamedTensors gradients_of(const nn::Model& model) {
  NamedTensors out;
  for (const auto& [name, tensor] : model.named_parameters())
    out.emplace_back(
        name, tensor.grad().defined() ? tensor.grad().clone() : at::zeros_like(tensor).detach());
  return out;
}

double distance(const NamedTensors& a, const NamedTensors& b) {
  EXPECT_EQ(a.size(), b.size());
  double out = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_EQ(a[i].second.sizes(), b[i].second.sizes());
    out = std::max(out, (a[i].second - b[i].second).abs().max().item<double>());
  }
  return out;
}

void on_ranks(int64_t ranks, const std::function<void(Group)>& body,
              std::chrono::milliseconds timeout) {
  run_threads(ranks, body, {.backend = "gloo", .timeout = timeout});
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing thrown";
}

}  // namespace bellows::parallel::test
