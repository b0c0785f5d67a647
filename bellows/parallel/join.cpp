#include "bellows/parallel/join.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/parallel/ddp_state.h"
#include "bellows/parallel/exchange.h"

namespace bellows::parallel {
namespace {

constexpr int64_t kSkewWorthAWarning = 1000;

// The collectives that join adds, one after another, the same on a rank that is still in its loop
// and on one that is not:
//   before each forward pass   count: 1 or 0, summed
//                              with throw_on_early_termination: rank + 1 or 0, the largest
//   where buffers are sent     their source: rank or -1, the largest
//   before the backward pass   whether it reduces: 1 or 0, the largest
class Session {
 public:
  Session(DdpCore::State& state, const JoinOptions& options) : state_(state), options_(options) {
    state.on_forward = [this] { active(); };
    state.source_of_buffers = [this] { return agreed(state_.group.rank()); };
    state.before_backward = [this] {
      // A pass without gradients reduces nothing.
      agreed(state_.sync && at::GradMode::is_enabled());
    };
    if (!options.divide_by_initial_world_size) state.divisor = [this] { return remaining_; };
  }

  ~Session() {
    state_.on_forward = state_.before_backward = nullptr;
    state_.source_of_buffers = state_.divisor = nullptr;
  }

  // After the body.
  void shadow() {
    bool last = true;
    for (int64_t passes = 0; (remaining_ = summed(0)) > 0; ++passes) {
      if (passes == kSkewWorthAWarning)
        log::warn(concat("join: rank ", state_.group.rank(), " has had ", passes,
                         " batches fewer than others, and still waits for them."));
      last = false;
      if (options_.throw_on_early_termination) refuse(agreed(state_.group.rank() + 1));
      shadow_pass();
    }
    state_.sync_module_states(agreed(last ? state_.group.rank() : -1));
  }

 private:
  void active() {
    remaining_ = summed(1);
    if (!options_.throw_on_early_termination || remaining_ == state_.group.size()) return;
    refuse(agreed(0));
  }

  void shadow_pass() {
    if (state_.will_sync_buffers()) {
      const int64_t source = agreed(-1);
      broadcast_tensors(state_.group, state_.buffers(), source);
    }
    const bool reduces = agreed(0) > 0;
    state_.sync_buffers_next = reduces;
    if (reduces) state_.reducer->shadow_backward();
  }

  [[noreturn]] void refuse(int64_t rank_plus_one) const {
    const int64_t rank = rank_plus_one - 1;
    throw RankError(concat("join: rank ", rank,
                           " has run out of data before others, and "
                           "throw_on_early_termination is set."),
                    {rank});
  }

  int64_t summed(int64_t value) const { return reduced(value, ReduceOp::sum); }
  int64_t agreed(int64_t value) const { return reduced(value, ReduceOp::max); }
  int64_t reduced(int64_t value, ReduceOp op) const {
    const at::Tensor tensor = at::full(
        {1}, value, at::TensorOptions(at::kLong).device(state_.trained.front().second.device()));
    state_.group.all_reduce(tensor, op);
    return tensor.item<int64_t>();
  }

  DdpCore::State& state_;
  const JoinOptions& options_;
  int64_t remaining_ = 0;
};

}  // namespace

void join(DdpCore& ddp, const std::function<void()>& body, const JoinOptions& options) {
  if (!options.enable || ddp.group().size() == 1) return body();
  if (ddp.state()->options.static_graph)
    throw ValueError(
        "join: got static_graph = true, whose first iteration a rank without data cannot take part "
        "in. Set static_graph = false.");
  Session session(*ddp.state(), options);
  body();
  session.shadow();
}

}  // namespace bellows::parallel
