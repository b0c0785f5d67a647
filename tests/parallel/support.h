// Small models, data and training loops in float64, the same in every process and thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/nn/model.h"
#include "bellows/optim/optimizer.h"
#include "bellows/parallel/init.h"

namespace bellows::parallel::test {

constexpr int64_t kIn = 5, kOut = 3;

/// Values that look random: [sizes…], different for each seed.
at::Tensor numbers(std::vector<int64_t> sizes, int64_t seed, at::ScalarType type = at::kDouble);

/// first.weight, first.bias, second.weight, second.bias: kIn -> 8 -> kOut with tanh.
nn::Model make_net(int64_t seed, at::ScalarType type = at::kDouble);
/// A parameter that wants gradients.
at::Tensor parameter(std::vector<int64_t> sizes, int64_t seed, at::ScalarType type = at::kDouble);

struct Batch {
  at::Tensor x, y;
  /// Rank `rank`'s rows: those of `rank` of `ranks` equal parts.
  Batch part(int64_t rank, int64_t ranks) const;
};
/// `rows` for all ranks together.
Batch make_batch(int64_t step, int64_t rows, at::ScalarType type = at::kDouble);
at::Tensor mean_square(const Tree& output, const at::Tensor& y);

/// "plain" (without momentum), "sgd" (momentum, weight decay), "adamw".
std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name, const nn::Model& model);

/// Copies of the parameters' values.
NamedTensors values_of(const nn::Model& model);
NamedTensors gradients_of(const nn::Model& model);
/// The largest absolute difference; fails where names or shapes differ.
double distance(const NamedTensors& a, const NamedTensors& b);

/// run_threads with a time-out for tests.
void on_ranks(int64_t ranks, const std::function<void(Group)>& body,
              std::chrono::milliseconds timeout = std::chrono::seconds(30));

/// What the action throws, or "nothing thrown".
std::string message_of(const std::function<void()>& action);

}  // namespace bellows::parallel::test
