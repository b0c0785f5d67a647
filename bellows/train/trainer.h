// The training loop, composed of public parts: a hand-written loop can use every one of them alone.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Device.h>

#include "bellows/data/loader.h"
#include "bellows/nn/model.h"
#include "bellows/optim/optimizer.h"
#include "bellows/parallel/distributed_data_parallel.h"
#include "bellows/parallel/group.h"
#include "bellows/train/callback.h"
#include "bellows/train/metrics.h"
#include "bellows/train/ranks.h"
#include "bellows/train/recovery.h"
#include "bellows/train/step.h"
#include "bellows/train/update.h"

namespace bellows::checkpoint {
class AsyncSaver;
}

namespace bellows::train {

struct TrainerOptions {
  /// Passes over the training data, counted from the very start of the run.
  int64_t epochs = 1;
  /// Where batches are moved to; the model is moved in the constructor.
  c10::Device device = c10::kCPU;
  /// Steps between on_log events. On devices other than the CPU, also how often losses are read and
  /// checked.
  int64_t log_every = 50;
  /// The ranks that train this model together, each on its own share of the data: its loaders give
  /// that. All construct the trainer, add callbacks that do the same on every rank, and call its
  /// members, in the same order.
  parallel::Group group = {};
  /// How gradients are averaged over them.
  parallel::DdpOptions ddp = {};
  /// Precision and clipping.
  UpdateOptions update = {};
  /// Batches of one step. Their gradients are those of one batch of all of them, also where they
  /// are not of one size (but for layers that look at a whole batch, as BatchNorm).
  int64_t accumulate = 1;
  /// Where memory runs out in a step, it is done anew with each batch in twice as many parts, one
  /// after the other, with the same gradients; that stays so and is logged. With several ranks on
  /// devices all agree, in their first two steps; later, and with find_unused_parameters or
  /// static_graph, the run ends, as it does without this
  /// and where 16 parts, or single samples, do not fit. Layers that look at a whole batch, as
  /// BatchNorm, see parts.
  bool recover = true;
  /// How many parts a batch has at first.
  int64_t parts = 1;
  /// Whether all of them write a checkpoint together (train/sharded_checkpoint.h), or rank 0 alone.
  bool sharded_checkpoints = false;
};

/// How fit() ended.
enum class Outcome { completed, stopped, interrupted };

/// Trains one model with one optimizer. One thread; not copyable, since callbacks refer to it. With
/// several ranks every step averages the gradients of all (parallel::DistributedDataParallel), the
/// values that callbacks get are those of all ranks together, a signal or stop() on any ends fit()
/// on all, and rank 0 writes checkpoints. A rank whose data have ended before the others' takes
/// part with its last batch at weight 0.
class Trainer {
 public:
  /// Throws ValueError for epochs < 0, log_every < 1, or a model without parameters to train. The
  /// optimizer must outlive the trainer.
  Trainer(nn::Model model, optim::Optimizer& optimizer, StepFunction step,
          TrainerOptions options = {});
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// In order of calling. Throws ValueError for a second callback of the same non-empty name.
  void add(std::shared_ptr<Callback> callback);

  /// Trains until `epochs` are done, `stop()` is called or a signal asks for it (core/interrupt.h):
  /// the step at hand is finished first. After a `load` it goes on where the checkpoint was. Throws
  /// NonFiniteError naming the step and the first bad parameter when the loss is NaN or infinite
  /// (with fp16, where such steps are skipped, after too many of them in a row);
  /// ValueError for tensors on the wrong device.
  Outcome fit(data::Loader& training, data::Loader* evaluation = nullptr);

  /// Mean metrics over a loader in evaluation mode, without gradients; the model's mode is
  /// restored. Nothing when a signal came in between.
  std::optional<Values> evaluate(data::Loader& loader);

  /// Ends fit() after the step at hand; with several ranks, where one is enough to call it, after
  /// the next.
  void stop() { stop_ = true; }

  /// Writes a checkpoint of everything under `root` (checkpoint/checkpoint.h), calls `after`, and
  /// returns its directory; with several ranks, rank 0 does, or all together. Only from callbacks
  /// or after fit().
  std::filesystem::path save(
      const std::filesystem::path& root,
      const std::function<void(const std::filesystem::path& directory)>& after = {});
  /// The same behind the caller's back (checkpoint/async_saver.h): returns once the state has been
  /// copied. Throws ValueError with sharded_checkpoints.
  void save(const std::filesystem::path& root, checkpoint::AsyncSaver& saver,
            std::function<void(const std::filesystem::path& directory)> after = {});
  /// Restores everything, the training loader's position included; call it before fit() with that
  /// loader, and after all callbacks have been added. Throws as checkpoint::load. Another number of
  /// ranks may have saved it.
  void load(const std::filesystem::path& checkpoint, data::Loader& training);

  const Progress& progress() const { return progress_; }
  /// Values of the last on_epoch event ("train_loss", "test_loss", …).
  const Values& last_values() const { return last_values_; }
  const nn::Model& model() const { return model_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  const TrainerOptions& options() const { return options_; }
  const parallel::Group& group() const { return options_.group; }

 private:
  /// The trainer's own numbers, as one part of a checkpoint.
  class State;

  /// Runs fn(); LibTorch's out-of-memory error gets what held the memory.
  template <class Fn>
  void with_memory_context(Fn fn) const;
  std::optional<data::Batch> next_batch();
  /// Those of the next step; none where the epoch is over.
  std::vector<data::Batch> next_batches();
  /// A step of all ranks, or nothing where the epoch is over for all. False: the latter.
  bool step_of_all();
  /// What one forward and backward pass came to; no graph is left.
  struct Part {
    StepOutput output;
    int64_t samples;
  };
  /// `total`: the samples of all ranks, known late. False: skipped.
  bool train_step(const std::vector<data::Batch>& batches, const std::function<int64_t()>& total,
                  bool counts);
  /// On the device.
  Tree moved(const data::Batch& batch);
  bool tries_first() const;
  std::vector<Part> gradients_that_fit(const std::vector<data::Batch>& batches,
                                       const std::function<int64_t()>& total, bool counts);
  void halve_parts(const std::vector<data::Batch>& batches, std::exception_ptr& failed);
  /// Of all batches together; `reduced`: averaged over the ranks in the last backward pass.
  std::vector<Part> gradients(const std::vector<data::Batch>& batches,
                              const std::function<int64_t()>& total, bool counts, bool reduced);
  /// Of an evaluation.
  std::vector<Part> outputs_that_fit(const data::Batch& batch);
  Part add_gradients(const Tree& batch, int64_t samples, const std::function<int64_t()>& total,
                     bool counts, bool last);
  const MeanMetrics& saved_metrics() const { return merged_ ? *merged_ : epoch_metrics_; }
  Vote::Values wishes(int64_t samples = 0) const;
  void heed(const Vote::Values& all);
  void agree() { heed(group().size() == 1 ? wishes() : vote_.of_all(wishes())); }
  void collect();
  void log();
  /// False when a signal came during the evaluation: the epoch is then not over.
  bool end_epoch(data::Loader* evaluation);
  [[noreturn]] void fail_non_finite(int64_t step) const;
  template <class Event, class... Args>
  void notify(Event event, const Args&... args);
  std::map<std::string, Stateful*> parts();
  /// The parts, after everything that a checkpoint reads is up to date.
  std::map<std::string, const Stateful*> parts_to_save();

  nn::Model model_;
  optim::Optimizer& optimizer_;
  StepFunction step_;
  TrainerOptions options_;
  std::unique_ptr<parallel::DdpCore> ddp_;  // null: one rank
  nn::Model training_model_;                // model_, or a forward through ddp_
  std::vector<std::shared_ptr<Callback>> callbacks_;
  Progress progress_;
  MeanMetrics epoch_metrics_;          // of this rank
  std::optional<MeanMetrics> merged_;  // of several ranks, for a checkpoint
  RandomOfRanks random_;
  Vote vote_;
  int64_t parts_;  // of a batch, as memory allows
  int64_t evaluation_parts_ = 1;
  int64_t steps_tried_ = 0;  // since the start of this process
  Update update_;
  std::optional<StepSnapshot> snapshot_;
  std::shared_ptr<State> state_;
  data::Loader* training_ = nullptr;
  std::optional<data::Batch> last_batch_;  // with several ranks
  Values last_values_;
  bool loaded_ = false;
  bool checked_ = false;      // the devices of model and batches
  bool stepped_ = true;       // the last step was not skipped
  bool stop_ = false;         // wished on this rank
  bool stopped_ = false;      // by this rank or another
  bool interrupted_ = false;  // the same
  Progress logged_;           // as of the last on_log event
};

}  // namespace bellows::train
