// Shapes of the results of operators that LibTorch's C++ library has no shape function for. What
// they would take besides, within their kernels, is not counted.
#include <deque>
#include <tuple>

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "bellows/memory/meta.h"

namespace bellows::memory::detail {
namespace {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

bool channels_last(const Tensor& a, const Tensor& b) {
  const auto format = at::MemoryFormat::ChannelsLast;
  return a.suggest_memory_format() == format || b.suggest_memory_format() == format;
}

int64_t at_dim(IntArrayRef values, size_t dim) {
  return values.size() == 1 ? values[0] : values[dim];
}

Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor&,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  const size_t spatial = static_cast<size_t>(weight.dim()) - 2;
  std::vector<int64_t> sizes{input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (size_t i = 0; i < spatial; ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    const int64_t kernel = at_dim(dilation, i) * (weight.size(dim) - 1) + 1;
    const int64_t step = at_dim(stride, i), pad = 2 * at_dim(padding, i);
    sizes.push_back(transposed
                        ? (input.size(dim) - 1) * step - pad + kernel + at_dim(output_padding, i)
                        : (input.size(dim) + pad - kernel) / step + 1);
  }
  const bool last = spatial == 2 && channels_last(input, weight);
  return at::empty(sizes, input.options().memory_format(last ? at::MemoryFormat::ChannelsLast
                                                             : at::MemoryFormat::Contiguous));
}

Three convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                           c10::OptionalIntArrayRef bias_sizes, IntArrayRef, IntArrayRef,
                           IntArrayRef, bool, IntArrayRef, int64_t, std::array<bool, 3> mask) {
  return {mask[0] ? at::empty_like(input) : Tensor(), mask[1] ? at::empty_like(weight) : Tensor(),
          mask[2]
              ? at::empty(bias_sizes ? *bias_sizes : IntArrayRef({grad.size(1)}), grad.options())
              : Tensor()};
}

Three native_batch_norm(const Tensor& input, const OptionalTensor&, const OptionalTensor&,
                        const OptionalTensor&, const OptionalTensor&, bool training, double,
                        double) {
  const int64_t count = training ? input.size(1) : 0;
  return {at::empty_like(input), at::empty({count}, input.options().dtype(at::kFloat)),
          at::empty({count}, input.options().dtype(at::kFloat))};
}

Three native_batch_norm_backward(const Tensor&, const Tensor& input, const OptionalTensor& weight,
                                 const OptionalTensor&, const OptionalTensor&,
                                 const OptionalTensor&, const OptionalTensor&, bool, double,
                                 std::array<bool, 3> mask) {
  const auto options = weight && weight->defined() ? weight->options() : input.options();
  const auto channels = [&](bool wanted) {
    return wanted ? at::empty({input.size(1)}, options) : Tensor();
  };
  return {mask[0] ? at::empty_like(input) : Tensor(), channels(mask[1]), channels(mask[2])};
}

Tensor adaptive_avg_pool2d(const Tensor& input, IntArrayRef sizes) {
  std::vector<int64_t> out(input.sizes().begin(), input.sizes().end() - 2);
  out.insert(out.end(), sizes.begin(), sizes.end());
  return at::empty(out, input.options());
}

Tensor adaptive_avg_pool2d_backward(const Tensor&, const Tensor& input) {
  return at::empty_like(input);
}

Three native_layer_norm(const Tensor& input, IntArrayRef normalized, const OptionalTensor&,
                        const OptionalTensor&, double) {
  std::vector<int64_t> sizes = input.sizes().vec();
  for (size_t i = sizes.size() - normalized.size(); i < sizes.size(); ++i) sizes[i] = 1;
  const Tensor result = at::empty_like(input, at::MemoryFormat::Contiguous);
  const auto options = input.options().dtype(at::kFloat);
  return {result, at::empty(sizes, options), at::empty(sizes, options)};
}

Three native_layer_norm_backward(const Tensor&, const Tensor& input, IntArrayRef, const Tensor&,
                                 const Tensor&, const OptionalTensor& weight,
                                 const OptionalTensor& bias, std::array<bool, 3> mask) {
  const auto like = [](const OptionalTensor& value, bool wanted) {
    return wanted && value && value->defined() ? at::empty_like(*value) : Tensor();
  };
  return {mask[0] ? at::empty_like(input, at::MemoryFormat::Contiguous) : Tensor(),
          like(weight, mask[1]), like(bias, mask[2])};
}

using Layer = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// What oneDNN keeps for its backward: gates and states of each step, in units of a step's output.
// Fitted to LibTorch 2.14 on hidden sizes of 64 to 256, within 5 % there.
int64_t lstm_workspace(const Tensor& input, int64_t hidden) {
  constexpr int64_t kPage = 4096;
  const auto steps = static_cast<double>(input.size(0));
  const double units = input.element_size() == 4 ? 15.2 * steps + 10 : 21.3 * steps + 16;
  const auto bytes = static_cast<int64_t>(
      units * static_cast<double>(input.size(1) * hidden * input.element_size()));
  return (bytes + kPage - 1) / kPage * kPage;
}

Layer mkldnn_rnn_layer(const Tensor& input, const Tensor&, const Tensor&, const Tensor&,
                       const Tensor&, const Tensor& h, const Tensor& c, bool, IntArrayRef, int64_t,
                       int64_t hidden, int64_t, bool, bool, bool, bool train) {
  const int64_t steps = input.size(0), samples = input.size(1);
  const auto bytes = input.options().dtype(at::kByte);
  const int64_t workspace = train ? lstm_workspace(input, hidden) : 0;
  return {at::empty({steps, samples, hidden}, input.options()), at::empty_like(h),
          at::empty_like(c), at::empty({workspace}, bytes)};
}

using LayerGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

LayerGradients mkldnn_rnn_layer_backward(const Tensor& input, const Tensor& w1, const Tensor& w2,
                                         const Tensor& b1, const Tensor& b2, const Tensor& h,
                                         const Tensor& c, const Tensor&, const Tensor&,
                                         const Tensor&, const OptionalTensor&,
                                         const OptionalTensor&, const OptionalTensor&, bool,
                                         int64_t, int64_t, int64_t, bool, bool, bool, IntArrayRef,
                                         bool, const Tensor&) {
  return {at::empty_like(input), at::empty_like(w1), at::empty_like(w2), at::empty_like(b1),
          at::empty_like(b2),    at::empty_like(h),  at::empty_like(c)};
}

// As CPUs and simulated devices run it, layer by layer (aten/src/ATen/native/mkldnn/RNN.cpp).
Three lstm(const Tensor& input, at::TensorList hidden, at::TensorList parameters, bool biases,
           int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  const int64_t directions = bidirectional ? 2 : 1;
  const size_t width = biases ? 4 : 2;
  Tensor x = (batch_first ? input.transpose(0, 1) : input).contiguous();
  std::vector<Tensor> last_h, last_c;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t index = layer * directions + direction;
      const auto own = parameters.slice(static_cast<size_t>(index) * width, width);
      auto [y, next_h, next_c, workspace] =
          at::mkldnn_rnn_layer(x, own[0], own[1], biases ? own[2] : at::zeros_like(own[0]),
                               biases ? own[3] : at::zeros_like(own[1]), hidden[0][index],
                               hidden[1][index], direction > 0, {}, 2, hidden[0].size(2), layers,
                               biases, bidirectional, batch_first, train);
      outputs.push_back(y);
      last_h.push_back(next_h);
      last_c.push_back(next_c);
    }
    x = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (dropout != 0 && train && layer + 1 < layers) x = at::dropout(x, dropout, true);
  }
  return {batch_first ? x.transpose(0, 1) : x, at::stack(last_h), at::stack(last_c)};
}

// Of operators that change their arguments and give nothing.
void nothing(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

// Of operators that change their first argument and give it.
void itself(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size() - 1);
}

// Of operators that write into their last.
void last_argument(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::IValue out = stack->back();
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->push_back(out);
}

Tensor argument(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t index) {
  return stack[stack.size() - op.schema().arguments().size() + index].toTensor();
}

void give(const c10::OperatorHandle& op, torch::jit::Stack* stack, Tensor result) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->emplace_back(std::move(result));
}

// Of operators whose result is like their first argument; of backward ones, their second.
void like_first(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  give(op, stack, at::empty_like(argument(op, *stack, 0)));
}
void like_second(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  give(op, stack, at::empty_like(argument(op, *stack, 1)));
}

// Of operators that make one number of their first argument.
void one_number(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  give(op, stack, at::empty({}, argument(op, *stack, 0).options()));
}

Tensor reduced(const Tensor& input, int64_t reduction) {
  return reduction == 0 ? at::empty_like(input) : at::empty({}, input.options());
}
Tensor binary_cross_entropy(const Tensor& input, const Tensor&, const OptionalTensor&,
                            int64_t reduction) {
  return reduced(input, reduction);
}
Tensor huber_loss(const Tensor& input, const Tensor&, int64_t reduction, double) {
  return reduced(input, reduction);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(a.sizes(), b.sizes()));
  return at::empty(sizes, (a.dim() == 0 ? b : a).options());
}

Tensor index_select(const Tensor& input, int64_t dim, const Tensor& index) {
  std::vector<int64_t> sizes = input.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(dim < 0 ? dim + input.dim() : dim)] = index.numel();
  return at::empty(sizes, input.options());
}

Tensor embedding_dense_backward(const Tensor& grad, const Tensor&, int64_t rows, int64_t, bool) {
  return at::empty({rows, grad.size(-1)}, grad.options());
}

Two nll_loss2d_forward(const Tensor& input, const Tensor& target, const OptionalTensor&,
                       int64_t reduction, int64_t) {
  const Tensor total = at::empty({}, input.options());
  if (reduction == 0) return {at::empty(target.sizes(), input.options()), total};
  return {at::empty({}, input.options()), total};
}

Three native_group_norm_backward(const Tensor&, const Tensor& input, const Tensor&, const Tensor&,
                                 const OptionalTensor&, int64_t, int64_t channels, int64_t, int64_t,
                                 std::array<bool, 3> mask) {
  const auto of_channels = [&](bool wanted) {
    return wanted ? at::empty({channels}, input.options()) : Tensor();
  };
  return {mask[0] ? at::empty_like(input) : Tensor(), of_channels(mask[1]), of_channels(mask[2])};
}

torch::Library& library(c10::DispatchKey key) {
  static auto* all = new std::deque<torch::Library>;
  return all->emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
}

}  // namespace

void register_meta_kernels() {
  torch::Library& own = library(c10::DispatchKey::Meta);
  own.impl("convolution", &convolution);
  own.impl("convolution_backward", &convolution_backward);
  own.impl("native_batch_norm", &native_batch_norm);
  own.impl("native_batch_norm_backward", &native_batch_norm_backward);
  own.impl("_adaptive_avg_pool2d", &adaptive_avg_pool2d);
  own.impl("_adaptive_avg_pool2d_backward", &adaptive_avg_pool2d_backward);
  own.impl("native_layer_norm", &native_layer_norm);
  own.impl("native_layer_norm_backward", &native_layer_norm_backward);
  own.impl("mkldnn_rnn_layer", &mkldnn_rnn_layer);
  own.impl("mkldnn_rnn_layer_backward", &mkldnn_rnn_layer_backward);
  own.impl("lstm.input", &lstm);
  library(c10::DispatchKey::AutogradMeta).impl("lstm.input", &lstm);
  own.impl("binary_cross_entropy", &binary_cross_entropy);
  own.impl("huber_loss", &huber_loss);
  own.impl("where.self", &where);
  own.impl("where.self_out", torch::CppFunction::makeFromBoxedFunction<&last_argument>());
  own.impl("index_select", &index_select);
  own.impl("embedding_dense_backward", &embedding_dense_backward);
  own.impl("nll_loss2d_forward", &nll_loss2d_forward);
  own.impl("native_group_norm_backward", &native_group_norm_backward);
  for (const char* name : {"relu", "hardswish", "hardtanh", "logit", "flip", "roll",
                           "_prelu_kernel", "native_dropout_backward", "channel_shuffle"})
    own.impl(name, torch::CppFunction::makeFromBoxedFunction<&like_first>());
  for (const char* name :
       {"hardswish_backward", "hardtanh_backward", "mse_loss_backward", "glu_backward",
        "binary_cross_entropy_backward", "log_sigmoid_backward", "nll_loss2d_backward"})
    own.impl(name, torch::CppFunction::makeFromBoxedFunction<&like_second>());
  for (const char* name : {"dot", "max", "min"})
    own.impl(name, torch::CppFunction::makeFromBoxedFunction<&one_number>());
  for (const char* name : {"_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"})
    own.impl(name, torch::CppFunction::makeFromBoxedFunction<&nothing>());
  own.impl("bernoulli_.float", torch::CppFunction::makeFromBoxedFunction<&itself>());
}

}  // namespace bellows::memory::detail
