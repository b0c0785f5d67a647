// Scaling of the loss, so that gradients computed in float16 do not become 0. Source:
// torch/amp/grad_scaler.py, whose numbers, defaults and state these are.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "bellows/optim/optimizer.h"
#include "bellows/tree/stateful.h"

namespace bellows::amp {

struct ScaledOptimizer;

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;      // of the scale after growth_interval good updates; above 1
  double backoff_factor = 0.5;     // of the scale where a gradient was NaN or infinite; below 1
  int64_t growth_interval = 2000;  // updates
  /// false: the scaler changes nothing and step() only steps.
  bool enabled = true;
  /// Lets gradients that are float16 themselves pass. What is small in them is lost when they are
  /// unscaled: parameters kept in float32 under Autocast have none.
  bool allow_fp16 = false;
  /// More skipped updates in a row are a NonFiniteError; 0: never. Python goes on for ever; from
  /// 65536 a scale has by then come to 2^-84, where nothing overflows that is not broken.
  int64_t max_consecutive_skips = 100;
  /// With several ranks: makes the one-element tensor, above 0 where this rank found NaN or
  /// infinity, the maximum over ranks, so that all skip together. Called once for each optimizer
  /// and update, on every rank, in unscale_ (step where that was not called).
  std::function<void(at::Tensor& found_inf)> reduce_found_inf = nullptr;
};

/// One iteration: scale(loss).backward(); unscale_(optimizer) where gradients are to be clipped or
/// looked at; step(optimizer); update(). With several optimizers: unscale_ and step for each, then
/// one update. A step may be left out: update() is enough. Parameters may lie on several devices.
/// One thread at a time.
class GradScaler : public Stateful {
 public:
  /// Throws ValueError for options out of range.
  explicit GradScaler(GradScalerOptions options = {});

  /// Times the scale, which lies on the device of the first tensor that was ever scaled. A tree
  /// must consist of tensors (ValueError).
  at::Tensor scale(const at::Tensor& outputs);
  Tree scale(const Tree& outputs);

  /// Divides the gradients by the scale in place and notes whether one is NaN or infinite. Does not
  /// wait for the device. Throws ValueError where it comes twice or after step() without update(),
  /// before scale(), for float16 gradients (see the options), and where there is no gradient.
  void unscale_(optim::Optimizer& optimizer);
  void unscale_(torch::optim::Optimizer& optimizer);

  /// optimizer.step(), unless a gradient is NaN or infinite; unscales before where that has not
  /// been done. False where the step was skipped: then schedules and step counts stay where they
  /// are. Waits for the device once. Throws as unscale_; ValueError for LBFGS; NonFiniteError that
  /// names the first parameter with such a gradient after too many skips.
  bool step(optim::Optimizer& optimizer);
  bool step(torch::optim::Optimizer& optimizer);

  /// Ends the iteration: lowers or raises the scale, or takes a new one, of one element without
  /// requires_grad. The scale stays a normal number: it becomes neither 0 nor infinite. Throws
  /// ValueError where nothing was unscaled since the last, or for a scale not above 0.
  void update();
  void update(double new_scale);
  void update(const at::Tensor& new_scale);

  /// 1 where not enabled. Waits for the device.
  double get_scale() const;
  bool is_enabled() const { return options_.enabled; }
  double get_growth_factor() const { return options_.growth_factor; }
  double get_backoff_factor() const { return options_.backoff_factor; }
  int64_t get_growth_interval() const { return options_.growth_interval; }
  /// Throw ValueError for values out of range.
  void set_growth_factor(double factor);
  void set_backoff_factor(double factor);
  void set_growth_interval(int64_t interval);

  /// Calls of step() so far in this process that stepped, and that skipped.
  int64_t steps_taken() const { return taken_; }
  int64_t steps_skipped() const { return skipped_; }
  /// Iterations in a row, this one included, in which a step was skipped.
  int64_t consecutive_skips() const { return skips_in_a_row_ + (skipped_now_ ? 1 : 0); }

  // From Stateful: Python's keys scale, growth_factor, backoff_factor, growth_interval and
  // _growth_tracker; nothing where not enabled. Between update() and the next unscale_.
  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  enum class Stage { ready, unscaled, stepped };
  struct Use {  // of an optimizer since the last update
    Stage stage = Stage::ready;
    at::Tensor found_inf;  // on the scale's device; undefined before unscaling
  };

  void make_scale(c10::Device device);
  void require_scale(const char* call) const;
  void unscale(const ScaledOptimizer& optimizer);
  bool step(const ScaledOptimizer& optimizer);
  void fail_if_too_many(const ScaledOptimizer& optimizer) const;
  void end_iteration();

  GradScalerOptions options_;
  int64_t first_tracker_ = 0;
  at::Tensor scale_, growth_tracker_;  // float32 and int32; undefined before the first scale()
  std::map<const void*, Use> uses_;
  int64_t taken_ = 0, skipped_ = 0, skips_in_a_row_ = 0;
  bool skipped_now_ = false, taken_now_ = false;
};

}  // namespace bellows::amp
