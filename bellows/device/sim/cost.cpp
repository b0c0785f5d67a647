#include "bellows/device/sim/cost.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
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

std::string_view name_of(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name;
  if (name.starts_with("aten::")) name.remove_prefix(sizeof("aten::") - 1);
  return name;
}

Capability capability_of(c10::Device device) {
  Model& own = model();
  const std::lock_guard lock(own.mutex);
  if (own.capabilities.empty()) return {1, 1, 1, 0};  // switched off meanwhile
  const auto at = static_cast<size_t>(device.index());
  return own.capabilities[std::min(at, own.capabilities.size() - 1)];
}

template <class Fn>
void visit_tensors(c10::ArrayRef<c10::IValue> values, Fn visit) {
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector())
        if (tensor.defined()) visit(tensor);
  }
}

// Operators that touch as much of their first argument as they give, or take from another.
bool touches_a_part(std::string_view name) {
  constexpr std::array<std::string_view, 12> kNames{
      "embedding",   "index_select",     "index",    "gather",       "take",
      "index_put_",  "_index_put_impl_", "scatter_", "scatter_add_", "index_add_",
      "index_copy_", "index_fill_"};
  return std::ranges::find(kNames, name) != kNames.end();
}

// Bytes that must move at least: each memory that an argument or a new result lies in once, a
// repeated value (expand) once. Nothing for a view.
double bytes_moved(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments,
                   c10::ArrayRef<c10::IValue> results) {
  std::set<const void*> counted;
  double bytes = 0;
  const auto size = [](const at::Tensor& tensor) {
    return std::min(
        static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size()),
        static_cast<double>(tensor.storage().nbytes()));
  };
  const auto add = [&](const at::Tensor& tensor) {
    if (counted.insert(tensor.storage().unsafeGetStorageImpl()).second) bytes += size(tensor);
  };
  const std::string_view name = name_of(op);
  if (touches_a_part(name) && !arguments.empty() && arguments[0].isTensor()) {
    counted.insert(arguments[0].toTensor().storage().unsafeGetStorageImpl());
    visit_tensors(results, [&](const at::Tensor& tensor) {
      if (counted.count(tensor.storage().unsafeGetStorageImpl()) == 0)
        bytes += size(tensor);  // read there
    });
  }
  visit_tensors(arguments, add);
  visit_tensors(results, add);
  return bytes;
}

// Gives nothing new and changes nothing.
bool is_view(const c10::OperatorHandle& op) {
  const auto aliases = [](const c10::Argument& value) {
    return value.alias_info() != nullptr && !value.alias_info()->isWrite();
  };
  const auto& returns = op.schema().returns();
  return !returns.empty() && std::ranges::all_of(returns, aliases);
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
  const std::string_view name = name_of(op);
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

double host_now() {
  return host_clock;
}

void host_reaches(double time) {
  double seen = host_clock;
  while (seen < time && !host_clock.compare_exchange_weak(seen, time)) {
  }
}

void charge_operator(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments,
                     c10::ArrayRef<c10::IValue> results, c10::Device device) {
  if (is_view(op)) return;
  const Capability capability = capability_of(device);
  const double compute = flops_of(op, arguments, results) / (capability.peak_tflops * 1e12);
  const double memory = bytes_moved(op, arguments, results) / (capability.memory_gbps * 1e9);
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
