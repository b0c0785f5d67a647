#include "bellows/train/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>

#include "bellows/checkpoint/async_saver.h"
#include "bellows/checkpoint/checkpoint.h"
#include "bellows/core/agent_client.h"
#include "bellows/core/clock.h"
#include "bellows/core/error.h"
#include "bellows/core/interrupt.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/device/memory.h"
#include "bellows/device/move.h"
#include "bellows/memory/micro_batches.h"
#include "bellows/memory/out_of_memory.h"
#include "bellows/train/memory_use.h"
#include "bellows/train/sharded_checkpoint.h"

namespace bellows::train {
namespace {

bool finite(const at::Tensor& values) {
  return !values.defined() || !values.is_floating_point() ||
         at::isfinite(values).all().item<bool>();
}

void check_loss(const at::Tensor& loss) {
  if (!loss.defined() || loss.dim() != 0) {
    throw ValueError(concat("the step function's loss must be a 0-dim tensor, got ",
                            loss.defined() ? concat("shape ", loss.sizes()) : "an undefined one"));
  }
  if (!loss.requires_grad()) {
    throw ValueError(
        "the step function's loss has no graph: nothing in it depends on a parameter that "
        "requires a gradient");
  }
}

}  // namespace

class Trainer::State : public Stateful {
 public:
  explicit State(Trainer& trainer) : trainer_(trainer) {}

  Tree state_dict() const override {
    const Progress& p = trainer_.progress_;
    Tree::Dict values(trainer_.last_values_.begin(), trainer_.last_values_.end());
    Tree::Dict state{{"step", p.step},
                     {"epoch", p.epoch},
                     {"batch", p.batch},
                     {"samples", p.samples},
                     {"seconds", p.seconds},
                     {"wait_seconds", p.wait_seconds},
                     {"last_values", std::move(values)},
                     {"metrics", trainer_.saved_metrics().state_dict()}};
    if (trainer_.ddp_) state["ddp"] = trainer_.ddp_->state_dict();
    return state;
  }

  void load_state_dict(const Tree& state) override {
    Progress p = trainer_.progress_;
    p.step = state.at("step").integer();
    p.epoch = state.at("epoch").integer();
    p.batch = state.at("batch").integer();
    p.samples = state.at("samples").integer();
    p.seconds = state.at("seconds").number();
    p.wait_seconds = state.at("wait_seconds").number();
    Values values;
    for (const auto& [name, value] : state.at("last_values").dict()) values[name] = value.number();
    if (trainer_.ddp_ && state.contains("ddp")) trainer_.ddp_->load_state_dict(state.at("ddp"));
    if (trainer_.group().rank() == 0) trainer_.epoch_metrics_.load_state_dict(state.at("metrics"));
    trainer_.progress_ = p;
    trainer_.last_values_ = std::move(values);
  }

 private:
  Trainer& trainer_;
};

Trainer::Trainer(nn::Model model, optim::Optimizer& optimizer, StepFunction step,
                 TrainerOptions options)
    : model_(std::move(model)),
      optimizer_(optimizer),
      step_(std::move(step)),
      options_(std::move(options)),
      training_model_(model_),
      random_(options_.group),
      vote_(options_.group),
      parts_(options_.parts),
      update_(optimizer, options_.device, options_.group, options_.update),
      state_(std::make_shared<State>(*this)) {
  if (options_.epochs < 0)
    throw ValueError(concat("epochs must be 0 or more, got ", options_.epochs));
  if (options_.log_every < 1)
    throw ValueError(concat("log_every must be 1 or more, got ", options_.log_every));
  if (options_.parts < 1) throw ValueError(concat("parts must be 1 or more, got ", options_.parts));
  if (options_.accumulate < 1)
    throw ValueError(concat("accumulate must be 1 or more, got ", options_.accumulate));
  if (!step_)
    throw ValueError("a trainer needs a step function, for example train::classification()");
  const auto parameters = model_.named_parameters();
  if (std::none_of(parameters.begin(), parameters.end(),
                   [](const auto& entry) { return entry.second.requires_grad(); })) {
    throw ValueError("the model has no parameter that requires a gradient: nothing to train");
  }
  with_memory_context([&] {
    model_.to(options_.device);
    if (group().size() == 1) return;
    ddp_ = std::make_unique<parallel::DdpCore>(model_, group(), options_.ddp);
    training_model_ = ddp_->model();
  });
  progress_.epochs = options_.epochs;
}

template <class Fn>
void Trainer::with_memory_context(Fn fn) const {
  try {
    fn();
  } catch (c10::OutOfMemoryError& error) {
    error.add_context(describe_memory(model_, optimizer_, options_.device));
    throw;
  }
}

void Trainer::add(std::shared_ptr<Callback> callback) {
  if (!callback) throw ValueError("the callback is null");
  for (const auto& other : callbacks_) {
    if (!callback->name().empty() && other->name() == callback->name()) {
      throw ValueError("a callback named '" + callback->name() + "' has been added already");
    }
  }
  callbacks_.push_back(std::move(callback));
}

template <class Event, class... Args>
void Trainer::notify(Event event, const Args&... args) {
  for (const auto& callback : callbacks_) (*callback.*event)(*this, progress_, args...);
}

Outcome Trainer::fit(data::Loader& training, data::Loader* evaluation) {
  training_ = &training;
  progress_.batches = training.batches();
  if (!loaded_) training.start(progress_.epoch, progress_.batch);
  logged_ = progress_;
  stop_ = checked_ = false;
  model_.train();
  notify(&Callback::on_start);
  agree();
  while (progress_.epoch < options_.epochs && !stopped_ && !interrupted_) {
    const auto start = monotonic_clock().now();
    if (step_of_all()) {
      progress_.seconds += seconds_since(start);
      if (stepped_ && progress_.step % options_.log_every == 0) log();
      if (stepped_) notify(&Callback::on_step);
      if (group().size() == 1) agree();  // several have done so
    } else if (end_epoch(evaluation)) {
      agree();
    }
  }
  const bool was_interrupted = interrupted_ && progress_.epoch < options_.epochs;
  collect();
  notify(&Callback::on_end);
  loaded_ = true;  // a further fit() goes on from here
  return was_interrupted ? Outcome::interrupted : stopped_ ? Outcome::stopped : Outcome::completed;
}

Vote::Values Trainer::wishes(int64_t samples) const {
  return {.samples = samples, .stop = stop_, .interrupted = interrupted() != 0};
}

void Trainer::heed(const Vote::Values& all) {
  stopped_ = all.stop;
  interrupted_ = all.interrupted;
}

std::optional<data::Batch> Trainer::next_batch() {
  const auto start = monotonic_clock().now();
  std::optional<data::Batch> batch;
  agent::phase("load", progress_.step);
  with_memory_context([&] { batch = training_->next(); });
  progress_.wait_seconds += seconds_since(start);
  return batch;
}

std::vector<data::Batch> Trainer::next_batches() {
  std::vector<data::Batch> batches;
  while (std::ssize(batches) < options_.accumulate) {
    auto batch = next_batch();
    if (!batch) break;
    batches.push_back(std::move(*batch));
  }
  return batches;
}

bool Trainer::step_of_all() {
  std::vector<data::Batch> batches = next_batches();
  const auto read = std::ssize(batches);
  const bool alone = group().size() == 1, ended = batches.empty();
  if (alone && ended) return false;
  int64_t samples = 0;
  for (const data::Batch& batch : batches) samples += batch.samples;
  // The others' answers arrive while the first batch is computed.
  bool asked = !alone;
  if (asked) vote_.start(wishes(samples));
  const auto total = [&] {
    if (std::exchange(asked, false)) {
      const Vote::Values all = vote_.wait();
      heed(all);
      samples = all.samples;
    }
    return samples;
  };
  if (ended) {
    if (total() == 0) return false;
    if (!last_batch_) {
      throw ValueError(concat("rank ", group().rank(),
                              " had no batch of training data, while others had some; give each "
                              "rank at least one"));
    }
    batches.push_back(*last_batch_);
  }
  bool taken = true;
  with_memory_context([&] { taken = train_step(batches, total, !ended); });
  if (!alone && !ended) last_batch_ = std::move(batches.back());
  progress_.batch += ended ? options_.accumulate : read;
  progress_.samples += samples;
  if (taken) ++progress_.step;
  stepped_ = taken;
  return true;
}

bool Trainer::train_step(const std::vector<data::Batch>& batches,
                         const std::function<int64_t()>& total, bool counts) {
  std::vector<Part> parts = tries_first() ? gradients_that_fit(batches, total, counts)
                                          : gradients(batches, total, counts, /*reduced=*/true);
  std::optional<double> weights;
  for (const Part& part : parts) {
    if (part.output.weight) weights = weights.value_or(0) + (counts ? *part.output.weight : 0);
    if (counts) epoch_metrics_.add(part.output, part.samples, progress_.step + 1);
  }
  if (epoch_metrics_.pending() == 0 ||
      epoch_metrics_.pending() >= static_cast<size_t>(options_.log_every)) {
    collect();  // before the update: on the CPU a bad loss never reaches the weights
  }
  agent::phase("update", progress_.step);
  double factor = 1;
  if (weights) {
    const at::Tensor sum = at::full({1}, *weights, at::kDouble);
    group().all_reduce(sum);
    factor = static_cast<double>(total()) / sum.item<double>();
  }
  ++steps_tried_;
  return update_.step(factor);
}

Tree Trainer::moved(const data::Batch& batch) {
  Tree data = to(batch.data, options_.device, /*non_blocking=*/true);
  if (!checked_) {
    check_devices(options_.device, model_.named_parameters(), model_.named_buffers(), data);
    checked_ = true;
  }
  return data;
}

// One process always. Of several, an attempt must have no collective, since a rank that fails would
// leave the others in it: their first steps, in which memory runs out if it does, reduce
// gradients only once all have come through.
bool Trainer::tries_first() const {
  if (!options_.recover) return false;
  if (group().size() == 1) return true;
  constexpr int64_t kFirst = 2;  // the second has the optimizer's state
  return steps_tried_ < kFirst && !options_.device.is_cpu() && !options_.ddp.static_graph &&
         !options_.ddp.find_unused_parameters;
}

std::vector<Trainer::Part> Trainer::gradients_that_fit(const std::vector<data::Batch>& batches,
                                                       const std::function<int64_t()>& total,
                                                       bool counts) {
  const bool alone = group().size() == 1;
  const int64_t before = parts_;
  if (!snapshot_) snapshot_.emplace(model_);
  snapshot_->take();
  for (;;) {
    std::exception_ptr failed;
    std::vector<Part> parts;
    try {
      parts = gradients(batches, total, counts, /*reduced=*/alone);
    } catch (const std::exception& error) {
      if (!memory::is_out_of_memory(error)) throw;
      failed = std::current_exception();
    }
    if (on_all(group(), !failed)) {
      if (!alone) average_gradients(group(), model_.named_parameters());
      if (parts_ > before) {
        log::warn(concat("out of memory with a batch of ", batches.front().samples,
                         ": from now on each batch is computed in ", parts_,
                         " parts, whose gradients add up to the same step (memory.recover; layers "
                         "that look at a whole batch, as BatchNorm, see each part alone)"));
      }
      return parts;
    }
    halve_parts(batches, failed);
    snapshot_->restore();
  }
}

void Trainer::halve_parts(const std::vector<data::Batch>& batches, std::exception_ptr& failed) {
  constexpr int64_t kMost = 16;  // with more, the settings are wrong for the device
  int64_t samples = 1;
  for (const data::Batch& batch : batches) samples = std::max(samples, batch.samples);
  const int64_t most = std::min(samples, kMost);
  if (!on_all(group(), parts_ < most)) {
    if (failed) std::rethrow_exception(failed);
    throw Error("another rank ran out of memory with a batch in as many parts as can be");
  }
  failed = nullptr;  // it may hold tensors
  optimizer_.zero_grad();
  empty_cache(options_.device);
  parts_ = std::min(2 * parts_, most);
}

std::vector<Trainer::Part> Trainer::gradients(const std::vector<data::Batch>& batches,
                                              const std::function<int64_t()>& total, bool counts,
                                              bool reduced) {
  optimizer_.zero_grad();
  std::vector<Part> parts;
  for (size_t i = 0; i < batches.size(); ++i) {
    const Tree data = moved(batches[i]);
    const bool last_batch = i + 1 == batches.size();
    if (parts_ == 1) {
      const bool last = reduced && last_batch;
      parts.push_back(add_gradients(data, batches[i].samples, total, counts, last));
      continue;
    }
    for (const auto& part : memory::split_batch(data, parts_)) {
      const bool last = reduced && last_batch && part.index + 1 == part.count;
      parts.push_back(add_gradients(part.batch, part.samples, total, counts, last));
    }
  }
  return parts;
}

Trainer::Part Trainer::add_gradients(const Tree& batch, int64_t samples,
                                     const std::function<int64_t()>& total, bool counts,
                                     bool last) {
  std::optional<parallel::DdpCore::NoSync> later;
  if (ddp_ && !last) later.emplace(ddp_->state());
  agent::phase("forward", progress_.step);
  Part part{update_.forward(step_, training_model_, batch), samples};
  check_loss(part.output.loss);
  // Of the mean over all samples; DistributedDataParallel divides by the ranks.
  const double units = part.output.weight.value_or(static_cast<double>(samples));
  const double share = units * static_cast<double>(group().size()) / static_cast<double>(total());
  agent::phase("backward", progress_.step);
  update_.backward(part.output.loss, counts ? share : 0);
  part.output.loss = part.output.loss.detach();
  return part;
}

void Trainer::collect() {
  const int64_t bad = epoch_metrics_.collect();
  if (bad >= 0 && !update_.skips()) fail_non_finite(bad);
  const auto means = epoch_metrics_.means();
  if (const auto loss = means.find("loss"); loss != means.end()) progress_.loss = loss->second;
}

void Trainer::fail_non_finite(int64_t step) const {
  at::NoGradGuard no_grad;
  std::string culprit;
  for (const auto& [name, value] : model_.named_parameters()) {
    if (!finite(value)) {
      culprit = "the first parameter with such a value is " + name;
      break;
    }
  }
  for (const auto& [name, value] : model_.named_parameters()) {
    if (culprit.empty() && !finite(value.grad())) {
      culprit = "all parameters are finite; the first with a NaN or infinite gradient is " + name;
    }
  }
  if (culprit.empty())
    culprit = "all parameters and gradients are finite; look at the targets and the loss";
  throw NonFiniteError(
      concat("the loss is NaN or infinite at step ", step, "; ", culprit,
             ". A lower learning rate is the usual remedy; checkpoints saved before are unharmed"));
}

void Trainer::log() {
  collect();
  MeanMetrics window = epoch_metrics_.over(group());
  epoch_metrics_.take_window_loss();
  const double seconds = progress_.seconds - logged_.seconds;
  const double samples = static_cast<double>(progress_.samples - logged_.samples);
  Values values{{"train_loss", window.take_window_loss()},
                {"lr", optimizer_.lr(0)},
                {"samples_per_second", seconds > 0 ? samples / seconds : 0},
                {"data_wait_share",
                 seconds > 0 ? (progress_.wait_seconds - logged_.wait_seconds) / seconds : 0}};
  values.merge(update_.values());
  logged_ = progress_;
  notify(&Callback::on_log, values);
}

bool Trainer::end_epoch(data::Loader* evaluation) {
  if (progress_.batch == 0) {
    const data::LoaderReport report = training_->report();
    throw EnvironmentError(
        concat("epoch ", progress_.epoch, " of the training data had no batch",
               report.first_skipped.empty() ? "" : "; the first sample that could not be read: ",
               report.first_skipped.empty() ? "" : report.first_skipped.front().reason));
  }
  collect();
  Values values;
  for (const auto& [name, value] : epoch_metrics_.over(group()).means())
    values["train_" + name] = value;
  if (evaluation) {
    const auto results = evaluate(*evaluation);
    if (!results) return false;
    for (const auto& [name, value] : *results) values["test_" + name] = value;
  }
  last_values_ = std::move(values);
  epoch_metrics_.reset();
  ++progress_.epoch;
  progress_.batch = 0;
  training_->start(progress_.epoch);
  notify(&Callback::on_epoch, last_values_);
  return true;
}

std::optional<Values> Trainer::evaluate(data::Loader& loader) {
  at::NoGradGuard no_grad;
  const bool was_training = model_.is_training();
  model_.eval();
  agent::phase("evaluate", progress_.step);
  MeanMetrics metrics;
  loader.start(0);
  const int64_t batches = loader.batches();
  while (auto batch = loader.next()) {
    if (interrupted()) break;
    with_memory_context([&] {
      for (const auto& [output, samples] : outputs_that_fit(*batch)) {
        metrics.add(output, samples, progress_.step);
      }
    });
    notify(&Callback::on_evaluation_batch, loader.position(), batches);
  }
  model_.train(was_training);
  metrics.collect();
  if (vote_.of_all(wishes()).interrupted) {
    interrupted_ = true;
    return std::nullopt;
  }
  return metrics.over(group()).means();
}

std::vector<Trainer::Part> Trainer::outputs_that_fit(const data::Batch& batch) {
  for (;;) {
    try {
      const Tree data = to(batch.data, options_.device, /*non_blocking=*/true);
      if (evaluation_parts_ == 1) return {{update_.forward(step_, model_, data), batch.samples}};
      std::vector<Part> parts;
      for (const auto& part : memory::split_batch(data, evaluation_parts_)) {
        parts.push_back({update_.forward(step_, model_, part.batch), part.samples});
      }
      return parts;
    } catch (const std::exception& error) {
      const bool hopeless = evaluation_parts_ >= batch.samples;
      if (!options_.recover || hopeless || !memory::is_out_of_memory(error)) throw;
    }
    empty_cache(options_.device);
    evaluation_parts_ = std::min(2 * evaluation_parts_, batch.samples);
    log::warn(concat("out of memory in the evaluation: from now on its batches of ", batch.samples,
                     " are computed in ", evaluation_parts_, " parts (memory.recover)"));
  }
}

std::map<std::string, Stateful*> Trainer::parts() {
  std::map<std::string, Stateful*> parts{
      {"optimizer", &optimizer_}, {"random", &random_}, {"trainer", state_.get()}};
  if (training_) parts["loader"] = training_;
  if (update_.scaler() != nullptr) parts["scaler"] = update_.scaler();
  for (const auto& callback : callbacks_) {
    if (!callback->name().empty()) parts[callback->name()] = callback.get();
  }
  return parts;
}

std::map<std::string, const Stateful*> Trainer::parts_to_save() {
  collect();
  agent::phase("save", progress_.step);
  notify(&Callback::on_checkpoint);
  random_.gather();
  if (ddp_) merged_ = epoch_metrics_.over(group());
  const auto all = parts();
  return {all.begin(), all.end()};
}

std::filesystem::path Trainer::save(
    const std::filesystem::path& root,
    const std::function<void(const std::filesystem::path&)>& after) {
  const auto all = parts_to_save();
  std::filesystem::path saved;
  if (options_.sharded_checkpoints) {
    saved = save_sharded(group(), root, progress_.step, model_, all);
  }
  const Tree directory = on_first_rank(group(), [&] {
    if (saved.empty()) saved = checkpoint::save(root, progress_.step, model_, all);
    if (after) after(saved);
    return Tree(saved.string());
  });
  return directory.string();
}

void Trainer::save(const std::filesystem::path& root, checkpoint::AsyncSaver& saver,
                   std::function<void(const std::filesystem::path&)> after) {
  if (options_.sharded_checkpoints) {
    throw ValueError(
        "a checkpoint that all ranks write together cannot be written in the background");
  }
  const auto all = parts_to_save();
  on_first_rank(group(), [&] {
    saver.save(root, progress_.step, model_, all, std::move(after));
    return Tree();
  });
}

void Trainer::load(const std::filesystem::path& checkpoint, data::Loader& training) {
  training_ = &training;
  on_all_ranks(group(), [&] { checkpoint::load(checkpoint, model_, parts()); });
  loaded_ = true;
}

}  // namespace bellows::train
