#include "bellows/parallel/sync_batch_norm.h"

#include <optional>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/interceptor.h"

namespace bellows::parallel {
namespace {

at::ScalarType sum_type(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

std::vector<int64_t> all_but_channels(const at::Tensor& tensor) {
  std::vector<int64_t> out{0};
  for (int64_t i = 2; i < tensor.dim(); ++i) out.push_back(i);
  return out;
}

// [C] as [1, C, 1, …].
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<int64_t> sizes(like.dim(), 1);
  sizes[1] = like.size(1);
  return values.view(sizes);
}

// Of the whole batch: mean, sum of squared distances from it, number of values a channel.
struct Statistics {
  at::Tensor mean;
  at::Tensor squares;
  double count = 0;
};

Statistics gather_statistics(const at::Tensor& input, const Group& group) {
  const int64_t channels = input.size(1);
  const auto options = input.options().dtype(sum_type(input));
  const int64_t own_count = input.numel() / channels;
  at::Tensor mean = at::zeros({channels}, options), squares = at::zeros({channels}, options);
  if (own_count > 0) {
    const auto [variance, own_mean] =
        at::var_mean(input.to(options.dtype()), all_but_channels(input), false);
    mean = own_mean;
    squares = variance * static_cast<double>(own_count);
  }
  const at::Tensor own =
      at::cat({mean, squares, at::full({1}, static_cast<double>(own_count), options)});
  const at::Tensor all = at::empty({group.size(), own.numel()}, options);
  group.all_gather_into_tensor(all, own);
  const at::Tensor counts = all.narrow(1, 2 * channels, 1);
  const at::Tensor means = all.narrow(1, 0, channels);
  Statistics out;
  out.count = counts.sum().item<double>();
  out.mean = (means * counts).sum(0).div(out.count);
  out.squares = (all.narrow(1, channels, channels) + counts * (means - out.mean).square()).sum(0);
  return out;
}

struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(Group group) : group(std::move(group)) {}
  Group group;
};

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

class Normalize : public torch::autograd::Function<Normalize> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& input,
                          const std::optional<Variable>& given_weight,
                          const std::optional<Variable>& given_bias, const at::Tensor& mean,
                          const at::Tensor& scale, double count, const Group& group) {
    const at::Tensor weight = given_weight.value_or(at::Tensor());
    const at::Tensor bias = given_bias.value_or(at::Tensor());
    ctx->save_for_backward({input, weight, mean, scale});
    ctx->saved_data["count"] = count;
    ctx->saved_data["bias"] = bias.defined();
    ctx->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
    at::Tensor out = normalized(input, mean, scale);
    if (weight.defined()) out = out * by_channel(weight, input).to(out.scalar_type());
    if (bias.defined()) out = out + by_channel(bias, input).to(out.scalar_type());
    return out.to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &scale = saved[3];
    const double count = ctx->saved_data["count"].toDouble();
    const auto holder =
        c10::static_intrusive_pointer_cast<GroupHolder>(ctx->saved_data["group"].toCapsule());
    const at::Tensor gradient = gradients[0].to(scale.scalar_type());
    const at::Tensor unit = normalized(input, mean, scale);
    const auto dims = all_but_channels(input);
    const at::Tensor sum = gradient.sum(dims), product = (gradient * unit).sum(dims);
    variable_list out(7);
    if (ctx->needs_input_grad(0)) {
      const at::Tensor all = at::cat({sum, product});
      holder->group.all_reduce(all);
      all.div_(count);
      const auto parts = all.split(input.size(1));
      at::Tensor factor = scale;
      if (weight.defined()) factor = factor * weight.to(scale.scalar_type());
      out[0] = ((gradient - by_channel(parts[0], input) - unit * by_channel(parts[1], input)) *
                by_channel(factor, input))
                   .to(input.scalar_type());
    }
    if (weight.defined()) out[1] = product.to(weight.scalar_type());
    if (ctx->saved_data["bias"].toBool())
      out[2] = sum.to(weight.defined() ? weight.scalar_type() : sum.scalar_type());
    return out;
  }

 private:
  static at::Tensor normalized(const at::Tensor& input, const at::Tensor& mean,
                               const at::Tensor& scale) {
    return (input.to(mean.scalar_type()) - by_channel(mean, input)) * by_channel(scale, input);
  }
};

void update_running(const at::Tensor& running, const at::Tensor& value, double momentum) {
  if (running.defined()) running.mul_(1 - momentum).add_(value.to(running.scalar_type()), momentum);
}

at::Tensor optional(const c10::IValue& value) {
  return value.isNone() ? at::Tensor() : value.toTensor();
}

thread_local int64_t active_guards = 0;

// Of aten::batch_norm and aten::native_batch_norm, whose arguments begin alike.
bool take_over(const OperatorCall& call, std::vector<c10::IValue>& stack, const Group& group) {
  constexpr std::string_view kPlain = "aten::batch_norm", kNative = "aten::native_batch_norm";
  const bool plain = call.name() == kPlain, native = call.name() == kNative;
  if (!plain && !native) return false;
  const size_t count = native ? 8 : 9;
  const c10::IValue* arguments = &stack[stack.size() - count];
  if (!arguments[5].toBool()) return false;
  const at::Tensor out =
      sync_batch_norm(arguments[0].toTensor(), optional(arguments[1]), optional(arguments[2]),
                      optional(arguments[3]), optional(arguments[4]), group,
                      arguments[6].toDouble(), arguments[7].toDouble());
  stack.resize(stack.size() - count);
  stack.emplace_back(out);
  if (native) {  // the saved statistics, which only its own backward reads
    stack.emplace_back(at::empty({0}, out.options()));
    stack.emplace_back(at::empty({0}, out.options()));
  }
  return true;
}

class SyncedModel final : public nn::Model::Interface {
 public:
  SyncedModel(nn::Model model, Group group) : model_(std::move(model)), group_(std::move(group)) {}
  Tree forward(const Tree& input) override {
    const SyncBatchNormGuard guard(group_);
    return model_.forward(input);
  }
  NamedTensors named_parameters() const override { return model_.named_parameters(); }
  NamedTensors named_buffers() const override { return model_.named_buffers(); }
  nn::Ties ties() const override { return model_.ties(); }
  void train(bool on) override { model_.train(on); }
  bool is_training() const override { return model_.is_training(); }
  void to(c10::Device device) override { model_.to(device); }

 private:
  nn::Model model_;
  Group group_;
};

}  // namespace

at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& running_mean,
                           const at::Tensor& running_var, const Group& group, double momentum,
                           double eps) {
  if (group.size() == 1)
    return at::batch_norm(input, weight, bias, running_mean, running_var, true, momentum, eps,
                          false);
  if (input.dim() < 2 || input.size(1) == 0)
    throw ValueError(concat("SyncBatchNorm: got an input of sizes ", input.sizes(),
                            ", expected [N, C, …] with C above 0"));
  Statistics statistics;
  at::Tensor scale;
  {
    const at::NoGradGuard no_grad;
    statistics = gather_statistics(input, group);
    if (statistics.count < 2)
      throw ValueError(concat("SyncBatchNorm: got ", statistics.count, " values a channel on all ",
                              group.size(), " ranks together, expected more than 1 in training"));
    scale = at::rsqrt(statistics.squares / statistics.count + eps);
    update_running(running_mean, statistics.mean, momentum);
    update_running(running_var, statistics.squares / (statistics.count - 1), momentum);
  }
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return Normalize::apply(input, given(weight), given(bias), statistics.mean, scale,
                          statistics.count, group);
}

// TorchScript's executor is kept from putting BatchNorm's backward into a graph of its own, where
// other ranks could not take part: this thread's graphs run as they are written.
class PlainGraphs {
 public:
  PlainGraphs() { torch::jit::setGraphExecutorOptimize(false); }
  ~PlainGraphs() { torch::jit::setGraphExecutorOptimize(before_); }
  PlainGraphs(const PlainGraphs&) = delete;
  PlainGraphs& operator=(const PlainGraphs&) = delete;

 private:
  const bool before_ = torch::jit::getGraphExecutorOptimize();
};

struct SyncBatchNormGuard::State {
  explicit State(Group group)
      : intercept(OperatorHandler(
            [group = std::move(group)](const OperatorCall& call, std::vector<c10::IValue>& stack) {
              return take_over(call, stack, group);
            })) {}
  PlainGraphs plain_graphs;
  InterceptGuard intercept;
};

SyncBatchNormGuard::SyncBatchNormGuard(Group group) {
  if (group.size() == 1) return;
  state_ = std::make_unique<State>(std::move(group));
  ++active_guards;
}
SyncBatchNormGuard::~SyncBatchNormGuard() {
  if (state_) --active_guards;
}
bool SyncBatchNormGuard::active() {
  return active_guards > 0;
}

nn::Model convert_sync_batch_norm(const nn::Model& model, const Group& group) {
  return nn::Model(std::make_shared<SyncedModel>(model, group));
}

}  // namespace bellows::parallel
