#include "bellows/device/sim/cost.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>

#include "bellows/device/sim.h"
#include "bellows/device/sim/state.h"

namespace bellows::sim {
namespace {

std::atomic<double> host_clock = 0;

struct Model {
  std::mutex mutex;
  std::vector<Capability> capabilities;
};

Model& model() {
  static auto* model = new Model;
  return *model;
}

Capability capability_of(c10::Device device) {
  Model& own = model();
  const std::lock_guard lock(own.mutex);
  if (own.capabilities.empty()) return {1, 1, 1, 0};  // switched off meanwhile
  const auto at = static_cast<size_t>(device.index());
  return own.capabilities[std::min(at, own.capabilities.size() - 1)];
}

double bytes_in(c10::ArrayRef<c10::IValue> values) {
  double bytes = 0;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined())
      bytes += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
  };
  for (const c10::IValue& value : values) {
    if (value.isTensor()) add(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
  }
  return bytes;
}

double numel(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined()
             ? static_cast<double>(value.toTensor().numel())
             : 0;
}

// a [.., m, k] times b [.., k, n].
double product(const c10::IValue& a, const c10::IValue& b) {
  return 2 * numel(a) * static_cast<double>(b.toTensor().size(-1));
}

// One multiply-add for each output value and each weight that it takes.
double convolution(const at::Tensor& output, const at::Tensor& weight, bool transposed,
                   const at::Tensor& input) {
  const double per_value =
      static_cast<double>(weight.numel()) / static_cast<double>(weight.size(0));
  return 2 * static_cast<double>(transposed ? input.numel() : output.numel()) * per_value;
}

double convolution_backward(c10::ArrayRef<c10::IValue> arguments) {
  const bool transposed = arguments[7].toBool();
  const auto wanted = arguments[10].toBoolList();  // of input, weight, bias
  const double forward = convolution(arguments[0].toTensor(), arguments[2].toTensor(), transposed,
                                     arguments[1].toTensor());
  return forward * ((wanted.get(0) ? 1 : 0) + (wanted.get(1) ? 1 : 0));
}

// Scores and their product with the values: query [N, H, L, E], key [N, H, S, E].
double attention(const c10::IValue& query, const c10::IValue& key, const c10::IValue& value) {
  const auto keys = static_cast<double>(key.toTensor().size(-2));
  const double rows = numel(query) / static_cast<double>(query.toTensor().size(-1));
  return 2 * rows * keys *
         static_cast<double>(query.toTensor().size(-1) + value.toTensor().size(-1));
}

// Four gates for each value of the hidden state and time step.
double lstm_layer(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const auto steps = static_cast<double>(input.numel()) / static_cast<double>(input.size(-1));
  return 2 * steps * (numel(arguments[1]) + numel(arguments[2]));
}

}  // namespace

double flops_of(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments,
                c10::ArrayRef<c10::IValue> results) {
  const std::string_view name =
      std::string_view(op.operator_name().name).substr(sizeof("aten::") - 1);
  if (name == "mm" || name == "bmm") return product(arguments[0], arguments[1]);
  if (name == "addmm" || name == "baddbmm" || name == "addmm_" || name == "baddbmm_")
    return product(arguments[1], arguments[2]);
  if (name == "convolution" || name == "_convolution")
    return convolution(results[0].toTensor(), arguments[1].toTensor(), arguments[6].toBool(),
                       arguments[0].toTensor());
  if (name == "convolution_backward") return convolution_backward(arguments);
  if (name == "_scaled_dot_product_flash_attention_for_cpu")
    return attention(arguments[0], arguments[1], arguments[2]);
  if (name == "_scaled_dot_product_flash_attention_for_cpu_backward")
    return 2.5 * attention(arguments[1], arguments[2],
                           arguments[3]);  // five products for the forward's two
  if (name == "mkldnn_rnn_layer") return lstm_layer(arguments);
  if (name == "mkldnn_rnn_layer_backward") return 2 * lstm_layer(arguments);
  return 0;
}

void host_reaches(double time) {
  double seen = host_clock;
  while (seen < time && !host_clock.compare_exchange_weak(seen, time)) {
  }
}

void charge_operator(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments,
                     c10::ArrayRef<c10::IValue> results, c10::Device device) {
  const Capability capability = capability_of(device);
  const double compute = flops_of(op, arguments, results) / (capability.peak_tflops * 1e12);
  const double memory = (bytes_in(arguments) + bytes_in(results)) / (capability.memory_gbps * 1e9);
  Queue& queue = current_queue(device);
  queue.charge(std::max(compute, memory) + capability.latency_us * 1e-6, host_clock);
  // A number read back makes the host wait.
  if (op.operator_name().name == "aten::_local_scalar_dense") host_reaches(queue.time());
}

void charge_copy(Queue& queue, int64_t bytes, c10::Device from, c10::Device to) {
  if (!state().costs) return;
  const auto size = static_cast<double>(bytes);
  double rate = 0;
  double latency = 0;
  if (from == to) {
    rate = capability_of(from).memory_gbps / 2;  // read and written
    latency = capability_of(from).latency_us;
  } else {
    for (const c10::Device device : {from, to}) {
      if (device.type() != kType) continue;
      const Capability capability = capability_of(device);
      rate = rate == 0 ? capability.link_gbps : std::min(rate, capability.link_gbps);
      latency = std::max(latency, capability.latency_us);
    }
  }
  queue.charge(size / (rate * 1e9) + latency * 1e-6, host_clock);
}

void set_cost_model(std::vector<Capability> capabilities) {
  check_cost_model(capabilities);
  Model& own = model();
  const std::lock_guard lock(own.mutex);
  state().costs = !capabilities.empty();
  own.capabilities = std::move(capabilities);
}

bool cost_model_on() {
  return state().costs;
}

std::chrono::duration<double> host_time() {
  return std::chrono::duration<double>(host_clock.load());
}

std::chrono::duration<double> device_time(c10::Device device) {
  const c10::DeviceIndex index = device.has_index() ? device.index() : current_device();
  return std::chrono::duration<double>(latest_time(index));
}

}  // namespace bellows::sim
