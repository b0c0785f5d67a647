#include "bellows/parallel/distributed_data_parallel.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/grad_mode.h>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/device/interceptor.h"
#include "bellows/parallel/agreement.h"
#include "bellows/parallel/ddp_state.h"
#include "bellows/parallel/exchange.h"
#include "bellows/parallel/sync_batch_norm.h"

namespace bellows::parallel {
namespace {

constexpr double kBytesPerMb = 1024 * 1024;
constexpr double kDefaultBucketMb = 25;
constexpr int64_t kSmallBatch = 2;

NamedTensors without(const NamedTensors& tensors, const std::vector<std::string>& names) {
  NamedTensors out;
  for (const auto& named : tensors)
    if (std::find(names.begin(), names.end(), named.first) == names.end()) out.push_back(named);
  return out;
}

NamedTensors only_trained(const NamedTensors& tensors) {
  NamedTensors out;
  for (const auto& named : tensors)
    if (named.second.requires_grad()) out.push_back(named);
  return out;
}

bool has(const NamedTensors& tensors, const std::string& name) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const auto& named) { return named.first == name; });
}

std::string words(bool value) {
  return value ? "true" : "false";
}

std::vector<Fact> facts_of(const nn::Model& model, const DdpOptions& options) {
  std::vector<Fact> facts{
      {"broadcast_buffers =", words(options.broadcast_buffers)},
      {"bucket_cap_mb =", concat(options.bucket_cap_mb.value_or(kDefaultBucketMb),
                                 options.bucket_cap_mb ? "" : " (default)")},
      {"find_unused_parameters =", words(options.find_unused_parameters)},
      {"gradient_as_bucket_view =", words(options.gradient_as_bucket_view)},
      {"static_graph =", words(options.static_graph)},
      {"a communication hook:", words(static_cast<bool>(options.comm_hook))}};
  auto ignored = options.parameters_to_ignore;
  std::sort(ignored.begin(), ignored.end());
  facts.push_back({"ignored parameters:", ignored.empty() ? "none" : join(ignored)});
  for (const auto& bucket : options.bucket_layout)
    facts.push_back({"a given bucket of", join(bucket)});
  for (const auto& [name, tensor] : without(model.named_parameters(), ignored))
    facts.push_back(describe("parameter", name, tensor));
  for (const auto& [name, tensor] : without(model.named_buffers(), ignored))
    facts.push_back(describe("buffer", name, tensor));
  return facts;
}

void check_ignored(const nn::Model& model, const std::vector<std::string>& names) {
  for (const auto& name : names) {
    if (has(model.named_parameters(), name) || has(model.named_buffers(), name)) continue;
    std::vector<std::string> known;
    for (const auto& [own, tensor] : model.state_dict()) known.push_back(own);
    const std::string meant = nearest(name, known);
    throw ValueError(concat("parameters_to_ignore: the model has no parameter or buffer ", name,
                            meant.empty() ? "" : concat(" (did you mean ", meant, "?)")));
  }
}

// Throws for what is no partition of the parameters into buckets of one type and device.
BucketIndices to_indices(const BucketLayout& layout, const NamedTensors& parameters) {
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < parameters.size(); ++i) places.emplace(parameters[i].first, i);
  BucketIndices out;
  for (const auto& bucket : layout) {
    if (bucket.empty()) throw ValueError("Bucket layout: got an empty bucket.");
    std::vector<size_t> indices;
    for (const auto& name : bucket) {
      const auto place = places.find(name);
      if (place == places.end())
        throw ValueError(concat("Bucket layout: ", name,
                                " is not a trained parameter of the model, or comes twice."));
      indices.push_back(place->second);
      places.erase(place);
      const at::Tensor& first = parameters[indices.front()].second;
      const at::Tensor& tensor = parameters[indices.back()].second;
      if (first.scalar_type() != tensor.scalar_type() || first.device() != tensor.device())
        throw ValueError(concat("Bucket layout: ", bucket.front(), " (", first.scalar_type(), ", ",
                                first.device(), ") and ", name, " (", tensor.scalar_type(), ", ",
                                tensor.device(), ") cannot be in one bucket."));
    }
    out.push_back(std::move(indices));
  }
  if (!layout.empty() && !places.empty())
    throw ValueError(concat("Bucket layout: ", places.begin()->first, " is in no bucket."));
  return out;
}

ReducerOptions reducer_options(const DdpOptions& options, const NamedTensors& parameters) {
  const double mb = options.bucket_cap_mb.value_or(kDefaultBucketMb);
  const auto bytes = static_cast<int64_t>(mb * kBytesPerMb);
  return {.bucket_bytes = bytes,
          .first_bucket_bytes = options.bucket_cap_mb ? bytes : static_cast<int64_t>(kBytesPerMb),
          .find_unused_parameters = options.find_unused_parameters,
          .gradient_as_bucket_view = options.gradient_as_bucket_view,
          .static_graph = options.static_graph,
          .buckets = to_indices(options.bucket_layout, parameters)};
}

void check(const DdpOptions& options) {
  const double mb = options.bucket_cap_mb.value_or(kDefaultBucketMb);
  if (!(mb > 0) || !std::isfinite(mb))
    throw ValueError(concat("bucket_cap_mb: got ", mb, ", expected a number above 0"));
}

// A model whose forward goes through the wrapper.
class ParallelModel final : public nn::Model::Interface {
 public:
  explicit ParallelModel(std::shared_ptr<DdpCore::State> state) : state_(std::move(state)) {}
  Tree forward(const Tree& input) override {
    DdpCore::Forward pass(*state_);
    Tree output = state_->model.forward(input);
    std::vector<at::Tensor> tensors;
    detail::collect(output, tensors);
    pass.end(tensors);
    return output;
  }
  NamedTensors named_parameters() const override { return state_->model.named_parameters(); }
  NamedTensors named_buffers() const override { return state_->model.named_buffers(); }
  nn::Ties ties() const override { return state_->model.ties(); }
  void train(bool on) override { state_->model.train(on); }
  bool is_training() const override { return state_->model.is_training(); }
  void to(c10::Device device) override {
    for (const auto& [name, tensor] : state_->model.state_dict())
      if (tensor.device() != device)
        throw ValueError(concat("A model in DistributedDataParallel stays where it is: ", name,
                                " is on ", tensor.device(), ", and ", device,
                                " was asked for. Move the model before."));
  }

 private:
  std::shared_ptr<DdpCore::State> state_;
};

}  // namespace

DdpCore::State::State(nn::Model model_, Group group_, DdpOptions options_)
    : model(std::move(model_)), group(std::move(group_)), options(std::move(options_)) {
  require_agreement(group, facts_of(model, options));
  check(options);
  check_ignored(model, options.parameters_to_ignore);
  trained = only_trained(without(model.named_parameters(), options.parameters_to_ignore));
  if (trained.empty())
    throw ValueError("DistributedDataParallel: the model has no parameters that want gradients.");
  const ReducerOptions reducer_options_ = reducer_options(options, trained);
  sync_module_states(0);
  reducer = std::make_unique<Reducer>(group, trained, reducer_options_,
                                      options.comm_hook ? options.comm_hook : all_reduce_hook(),
                                      [this] { return divisor ? divisor() : group.size(); });
}

std::vector<at::Tensor> DdpCore::State::buffers() const {
  std::vector<at::Tensor> out;
  if (!options.broadcast_buffers) return out;
  for (const auto& [name, tensor] : without(model.named_buffers(), options.parameters_to_ignore))
    out.push_back(tensor);
  return out;
}

void DdpCore::State::sync_module_states(int64_t src) const {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : without(model.named_parameters(), options.parameters_to_ignore))
    tensors.push_back(tensor);
  for (const at::Tensor& buffer : buffers()) tensors.push_back(buffer);
  broadcast_tensors(group, tensors, src);
}

bool DdpCore::State::will_sync_buffers() const {
  return sync_buffers_next && !buffers().empty();
}

// Looks at one forward pass for BatchNorm on few samples.
struct DdpCore::Forward::Watch {
  explicit Watch(int64_t ranks)
      : guard([ranks](const OperatorCall& call) {
          if (!call.name().ends_with("batch_norm") || SyncBatchNormGuard::active()) return;
          call.for_each_tensor([ranks](const std::string& argument, const at::Tensor& tensor) {
            if (argument == "input" && tensor.dim() > 0 && tensor.size(0) <= kSmallBatch)
              log::warn_once(concat(
                  "BatchNorm takes its statistics from ", tensor.size(0), " samples on each of ",
                  ranks,
                  " ranks: training then differs from one process with the whole batch. "
                  "SyncBatchNormGuard and convert_sync_batch_norm take them from all ranks."));
          });
        }) {}
  InterceptGuard guard;
};

DdpCore::Forward::Forward(State& state) : state_(state) {
  const bool grad = at::GradMode::is_enabled();
  if (grad) {
    if (state.sync)
      state.reducer->prepare_for_forward();
    else
      state.reducer->prepare_without_reduction();
  }
  if (state.on_forward) state.on_forward();
  if (state.will_sync_buffers()) {
    const int64_t src = state.source_of_buffers ? state.source_of_buffers() : 0;
    broadcast_tensors(state.group, state.buffers(), src);
  }
  if (state.before_backward) state.before_backward();
  if (grad && !state.watched && state.group.size() > 1 && state.model.is_training())
    watch_ = std::make_unique<Watch>(state.group.size());
}

DdpCore::Forward::~Forward() = default;

void DdpCore::Forward::end(const std::vector<at::Tensor>& outputs) {
  if (watch_) state_.watched = true;
  watch_.reset();
  const bool reduced = at::GradMode::is_enabled() && state_.sync;
  if (reduced) state_.reducer->prepare_for_backward(outputs);
  state_.sync_buffers_next = reduced;
}

DdpCore::NoSync::NoSync(std::shared_ptr<State> state)
    : state_(std::move(state)), before_(state_->sync) {
  state_->sync = false;
}
DdpCore::NoSync::~NoSync() {
  state_->sync = before_;
}

DdpCore::DdpCore(nn::Model model, Group group, DdpOptions options)
    : state_(std::make_shared<State>(std::move(model), std::move(group), std::move(options))) {}
DdpCore::~DdpCore() = default;

nn::Model DdpCore::model() const {
  return nn::Model(std::make_shared<ParallelModel>(state_));
}
const Group& DdpCore::group() const {
  return state_->group;
}
int64_t DdpCore::iteration() const {
  return state_->reducer->iteration();
}

BucketLayout DdpCore::bucket_layout() const {
  BucketLayout layout;
  for (const auto& bucket : state_->reducer->buckets()) {
    auto& names = layout.emplace_back();
    for (const size_t i : bucket) names.push_back(state_->trained[i].first);
  }
  return layout;
}

Tree DdpCore::state_dict() const {
  Tree::List buckets;
  for (const auto& bucket : bucket_layout()) {
    Tree::List names;
    for (const auto& name : bucket) names.emplace_back(name);
    buckets.emplace_back(std::move(names));
  }
  return Tree::Dict{{"bucket_layout", std::move(buckets)}, {"settled", state_->reducer->settled()}};
}

void DdpCore::load_state_dict(const Tree& state) {
  BucketLayout layout;
  for (const Tree& bucket : state.at("bucket_layout").list()) {
    auto& names = layout.emplace_back();
    for (const Tree& name : bucket.list()) names.push_back(name.string());
  }
  const bool settled = state.at("settled").boolean();
  const BucketIndices indices = to_indices(layout, state_->trained);
  if (indices.empty()) throw ValueError("Bucket layout: got no buckets.");
  state_->reducer->set_buckets(indices, settled);
}

}  // namespace bellows::parallel
