// What the ranks of a run agree on while they train together. For a group of one process everything
// here is what that process says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "bellows/device/seed.h"
#include "bellows/parallel/group.h"
#include "bellows/tree/stateful.h"

namespace bellows::train {

/// One question at a time, which may be answered while something else is computed. All ranks ask
/// the same number of times.
class Vote {
 public:
  struct Values {
    int64_t samples = 0;       // of this rank's batch, then of all
    bool stop = false;         // one wants to end the run; then, whether any does
    bool interrupted = false;  // it has had a signal; then, whether any has
  };
  explicit Vote(parallel::Group group) : group_(std::move(group)) {}
  void start(const Values& own);
  /// Blocks until all have asked.
  Values wait();
  Values of_all(const Values& own) {
    start(own);
    return wait();
  }

 private:
  parallel::Group group_;
  parallel::Work work_;
  at::Tensor sums_;
};

/// The random generators of all ranks as one part of a checkpoint, of which rank 0 writes all.
class RandomOfRanks : public Stateful {
 public:
  explicit RandomOfRanks(parallel::Group group) : group_(std::move(group)) {}
  /// Collective; state_dict() has all ranks' states from then on, and before only this one's, which
  /// is of use to this rank alone.
  void gather();
  Tree state_dict() const override;
  /// With another number of ranks than were saved, the first takes its state and the others keep
  /// theirs.
  void load_state_dict(const Tree& state) override;

 private:
  parallel::Group group_;
  RandomState own_;
  Tree gathered_;
};

/// Runs `work` on rank 0 and gives its result to all. Collective. What it throws is thrown on all
/// ranks: on rank 0 as it is, elsewhere with the same text as the class of bellows::Error that
/// leads to the same exit code.
Tree on_first_rank(const parallel::Group& group, const std::function<Tree()>& work);

/// Runs `work` on every rank. Collective. Where it throws on some, all throw: those their own, the
/// others the first rank's, as on_first_rank does.
void on_all_ranks(const parallel::Group& group, const std::function<void()>& work);

}  // namespace bellows::train
