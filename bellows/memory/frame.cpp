#include "bellows/memory/frame.h"

#include <atomic>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "bellows/core/text.h"
#include "bellows/device/device.h"

namespace bellows::memory::detail {
namespace {

constexpr const char* kWhatToDo =
    " The function must compute the same when it is called again: from its arguments, parameters "
    "and the random state alone, not from counters, the time, or what it changes itself "
    "(batch norm's statistics: CheckpointOptions::buffers).";

// Ends a recomputation. An std::exception, so that autograd carries it out of its own threads.
struct Enough : std::exception {};

// A backward pass, or one use outside of any.
int current_pass() {
  static std::atomic<int> outside = -1;
  const int pass = torch::autograd::get_current_graph_task_id();
  return pass >= 0 ? pass : --outside;
}

}  // namespace

Metadata Metadata::of(const at::Tensor& tensor) {
  return {c10::DimVector(tensor.sizes()), tensor.scalar_type(), tensor.device()};
}

std::string Metadata::text() const {
  return concat(c10::toString(type), " ", at::IntArrayRef(sizes), " on ", device_name(device));
}

class Frame::Run {
 public:
  Run(const std::vector<Place>& places, bool stop_early) : places_(places) {
    values.resize(places.size());
    end_ = places.size();
    if (!stop_early) return;
    while (end_ > 0 && !places[end_ - 1].alive) --end_;
    stops_ = true;
  }

  void save(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    const size_t place = count++;
    if (place < places_.size() && places_[place].alive) values[place] = tensor;
    if (stops_ && count >= end_) {
      enough = true;
      throw Enough();
    }
  }

  std::vector<at::Tensor> values;
  size_t count = 0;
  bool enough = false;

 private:
  const std::vector<Place>& places_;
  size_t end_ = 0;
  bool stops_ = false;
  std::mutex mutex_;  // a backward within may save from several threads
};

namespace {

// The first time: nothing is kept but the place.
class Dropped : public SavedTensor {
 public:
  explicit Dropped(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}
  ~Dropped() override {
    if (packed_) frame_->drop(place_);
  }
  void pack(const at::Tensor& tensor, bool parameter) override {
    place_ = frame_->add(tensor, parameter);
    packed_ = true;
  }
  at::Tensor unpack() override { return frame_->take(place_); }

 private:
  std::shared_ptr<Frame> frame_;
  size_t place_ = 0;
  bool packed_ = false;
};

// Again: kept for the frame, and for a backward within the function.
template <class Run>
class Recomputed : public SavedTensor {
 public:
  explicit Recomputed(std::shared_ptr<Run> run) : run_(std::move(run)) {}
  void pack(const at::Tensor& tensor, bool) override {
    tensor_ = tensor;
    run_->save(tensor);
  }
  at::Tensor unpack() override { return tensor_; }

 private:
  std::shared_ptr<Run> run_;
  at::Tensor tensor_;
};

}  // namespace

Frame::Frame(const Tree& inputs, Region::Recompute recompute, CheckpointOptions options)
    : structure_(blank(inputs)),
      recompute_(std::move(recompute)),
      options_(std::move(options)),
      surroundings_(
          [&] {
            auto devices = accelerators_in(inputs);
            for (const c10::Device device : options_.devices)
              if (!device.is_cpu() &&
                  std::find(devices.begin(), devices.end(), device) == devices.end())
                devices.push_back(device);
            return devices;
          }(),
          options_.preserve_rng_state),
      kept_(options_.save_operators, surroundings_.devices()) {
  inputs.for_each_tensor([&](const std::string&, const at::Tensor& tensor) {
    inputs_.emplace_back(tensor, /*is_output=*/false);
  });
}

size_t Frame::add(const at::Tensor& tensor, bool parameter) {
  if (options_.observe) options_.observe(tensor, parameter);
  const std::lock_guard lock(mutex_);
  places_.push_back({Metadata::of(tensor)});
  kept_.saved(tensor);
  return places_.size() - 1;
}

void Frame::drop(size_t place) {
  const std::lock_guard lock(mutex_);
  places_[place].alive = false;
  for (auto& [pass, values] : values_)
    if (place < values.size()) values[place].reset();
}

void Frame::complete() {
  const std::lock_guard lock(mutex_);
  complete_ = true;
}

at::Tensor Frame::take(size_t place) {
  const std::lock_guard lock(mutex_);
  const int pass = current_pass();
  Values& values = values_[pass];
  if (place >= values.size() || !values[place].defined()) {
    values.clear();
    try {
      values = recompute();
    } catch (...) {
      values_.erase(pass);
      throw;
    }
  }
  at::Tensor out = std::move(values[place]);
  values[place].reset();
  const bool more =
      pass >= 0 && std::any_of(values.begin(), values.end(),
                               [](const at::Tensor& value) { return value.defined(); });
  if (!more) values_.erase(pass);
  return out;
}

Tree Frame::inputs() {
  size_t next = 0;
  return structure_.map([&](const at::Tensor&) {
    try {
      return inputs_[next++].unpack();
    } catch (c10::Error& error) {
      error.add_context(concat("tensor ", next - 1, " of a checkpointed function's arguments"));
      throw;
    }
  });
}

Frame::Values Frame::recompute() {
  const auto run = std::make_shared<Run>(places_, options_.early_stop);
  const Tree again = inputs();
  std::vector<at::Tensor> before;
  for (const at::Tensor& buffer : options_.buffers) before.push_back(buffer.detach().clone());
  const auto put_back = [&] {
    const c10::AutoGradMode no_grad(false);
    for (size_t i = 0; i < before.size(); ++i)  // without a step of its version
      options_.buffers[i].variable_data().copy_(before[i]);
  };
  try {
    const Surroundings::Restored restored(surroundings_);
    const c10::AutoGradMode grad(true);
    const SavedTensorGuard guard([run] { return std::make_unique<Recomputed<Run>>(run); });
    std::optional<InterceptGuard> operators;
    if (kept_.any()) operators.emplace(kept_.again([run](const at::Tensor& t) { run->save(t); }));
    recompute_(again);
  } catch (...) {
    put_back();
    if (!run->enough) throw;  // whatever the function made of it
    check(*run);
    return std::move(run->values);
  }
  put_back();
  check(*run);
  return std::move(run->values);
}

void Frame::check(const Run& run) const {
  // Where a backward within the function asks, it has not saved everything yet.
  if (complete_ && !run.enough && run.count != places_.size())
    throw CheckpointError(concat("checkpoint: the recomputation saved ", run.count,
                                 " tensors for the backward pass, the first computation ",
                                 places_.size(), ".", kWhatToDo));
  std::vector<std::string> wrong;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].alive) continue;
    if (!run.values[i].defined()) {
      wrong.push_back(concat("tensor ", i, " was not saved again"));
      continue;
    }
    const Metadata now = Metadata::of(run.values[i]);
    if (options_.determinism_check && now != places_[i].metadata)
      wrong.push_back(concat("tensor ", i, " of ", places_.size(), ": saved ",
                             places_[i].metadata.text(), ", recomputed ", now.text()));
  }
  if (!wrong.empty())
    throw CheckpointError(concat(
        "checkpoint: recomputed tensors differ from those of the first "
        "computation: ",
        join(wrong), ".", kWhatToDo,
        options_.determinism_check ? " CheckpointOptions::determinism_check = false leaves this "
                                     "comparison out."
                                   : ""));
}

struct Region::Guards {
  explicit Guards(const std::shared_ptr<Frame>& frame)
      : saved([frame] { return std::make_unique<Dropped>(frame); }) {
    if (frame->kept().any()) operators.emplace(frame->kept().first());
  }
  SavedTensorGuard saved;
  std::optional<InterceptGuard> operators;
};

Region::Region(const Tree& tensors, Recompute recompute, const CheckpointOptions& options) {
  if (!c10::GradMode::is_enabled()) return;
  frame_ = std::make_shared<Frame>(tensors, std::move(recompute), options);
  guards_ = std::make_unique<Guards>(frame_);
}

Region::~Region() = default;

void Region::end() {
  guards_.reset();
  if (frame_) frame_->complete();
}

}  // namespace bellows::memory::detail
