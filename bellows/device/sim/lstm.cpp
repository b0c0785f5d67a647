// The LSTM that the CPU takes. It chooses between two by the device kind
// (aten/src/ATen/native/RNN.cpp): oneDNN's, layer by layer, and one made of matrix products, whose
// rounding differs.
#include <algorithm>
#include <vector>

#include <ATen/Context.h>
#include <ATen/native/RNN.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "bellows/device/sim/library.h"
#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

using Lstm = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // output, last h, last c

constexpr int64_t kLstmMode = 2;  // of oneDNN's cells, as LibTorch counts them

bool has_avx512() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}

// As use_mkldnn() there, for float32 and bfloat16, and has_projections.
bool takes_onednn(const at::Tensor& input, at::TensorList hidden) {
  const bool type =
      input.scalar_type() == at::kFloat || (input.scalar_type() == at::kBFloat16 && has_avx512());
  return at::globalContext().userEnabledMkldnn() && at::Context::hasMKLDNN() && type &&
         input.numel() != 0 && hidden.size() == 2 && hidden[0].size(2) == hidden[1].size(2);
}

// Layers and directions one after the other (aten/src/ATen/native/mkldnn/RNN.cpp).
Lstm onednn_lstm(const at::Tensor& input, at::TensorList hidden, at::TensorList parameters,
                 bool biases, int64_t layers, double dropout, bool train, bool bidirectional,
                 bool batch_first) {
  const int64_t directions = bidirectional ? 2 : 1;
  const size_t width = biases ? 4 : 2;  // parameters of a layer's direction
  const at::Tensor h = hidden[0].contiguous();
  const at::Tensor c = hidden[1].contiguous();
  at::Tensor x = (batch_first ? input.transpose(0, 1) : input).contiguous();
  std::vector<at::Tensor> last_h, last_c;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<at::Tensor> outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t index = layer * directions + direction;
      const auto own = parameters.slice(static_cast<size_t>(index) * width, width);
      const at::Tensor input_bias = biases ? own[2] : at::zeros_like(own[0]);
      const at::Tensor hidden_bias = biases ? own[3] : at::zeros_like(own[1]);
      auto [y, next_h, next_c, workspace] = at::mkldnn_rnn_layer(
          x, own[0], own[1], input_bias, hidden_bias, h[index], c[index], direction > 0,
          /*batch_sizes=*/{}, kLstmMode, hidden[0].size(2), layers, biases, bidirectional,
          batch_first, train);
      outputs.push_back(y);
      last_h.push_back(next_h);
      last_c.push_back(next_c);
    }
    x = directions == 1 ? outputs[0] : at::cat(outputs, -1);
    if (dropout != 0 && train && layer + 1 < layers) x = at::dropout(x, dropout, /*train=*/true);
  }
  return {batch_first ? x.transpose(0, 1) : x, at::stack(last_h), at::stack(last_c)};
}

Lstm lstm(const at::Tensor& input, at::TensorList hidden, at::TensorList parameters, bool biases,
          int64_t layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  if (!takes_onednn(input, hidden)) {
    return at::native::lstm(input, hidden, parameters, biases, layers, dropout, train,
                            bidirectional, batch_first);
  }
  at::native::check_attributes(input, parameters, hidden);
  return onednn_lstm(input, hidden, parameters, biases, layers, dropout, train, bidirectional,
                     batch_first);
}

}  // namespace

void register_lstm() {
  for (const auto key : {c10::DispatchKey::AutogradHPU, c10::DispatchKey::HPU})
    library("aten", key).impl("lstm.input", &lstm);
}

}  // namespace bellows::sim
