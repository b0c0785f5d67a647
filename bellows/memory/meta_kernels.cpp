// Shapes of the results of operators that LibTorch's C++ library has no shape function for. What
// they would take besides, within their kernels, is not counted.
#include <deque>
#include <tuple>

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

// The workspace is what oneDNN keeps for its backward: gates and states of each step.
Layer mkldnn_rnn_layer(const Tensor& input, const Tensor&, const Tensor&, const Tensor&,
                       const Tensor&, const Tensor& h, const Tensor& c, bool, IntArrayRef, int64_t,
                       int64_t hidden, int64_t, bool, bool, bool, bool train) {
  const int64_t steps = input.size(0), samples = input.size(1);
  const auto bytes = input.options().dtype(at::kByte);
  const int64_t workspace = train ? steps * samples * hidden * 6 * input.element_size() : 0;
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
  for (const char* name : {"_fused_adamw_", "_fused_sgd_"})
    own.impl(name, torch::CppFunction::makeFromBoxedFunction<&nothing>());
  own.impl("bernoulli_.float", torch::CppFunction::makeFromBoxedFunction<&itself>());
}

}  // namespace bellows::memory::detail
