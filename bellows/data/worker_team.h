// Threads that make the batches of an epoch ahead of the one who consumes them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>

#include "bellows/data/batch_reader.h"

namespace bellows::data {

/// One owner thread calls it. The threads start with the first `serve`, once, and share a state
/// that outlives the team: one that is stuck in a sample can be left behind.
class WorkerTeam {
 public:
  /// `workers` >= 1; at most `depth` >= 1 batches are ready or in preparation. `dataset` (may be
  /// null) gives each worker its own, where it wants that.
  WorkerTeam(int64_t workers, int64_t depth, std::shared_ptr<const Dataset> dataset);
  /// Waits up to `stop_timeout` for what is being read.
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;
  void set_stop_timeout(std::chrono::milliseconds timeout) { stop_timeout_ = timeout; }

  /// From now on makes the batches [first, end) of `reader`, without those in `done`; what was made
  /// before is dropped. Waits for nothing.
  void serve(std::shared_ptr<BatchReader> reader, int64_t first, int64_t end,
             const std::set<int64_t>& done);
  /// Drops everything, and makes nothing until `serve`.
  void stop();

  struct Taken {
    int64_t number;
    PreparedBatch batch;
  };
  /// Waits for batch `number` (or, where it is empty, for any that is ready) and rethrows its
  /// error; the batch is then made again. Nothing when `timeout` (0: none) has passed.
  std::optional<Taken> take(std::optional<int64_t> number, std::chrono::milliseconds timeout);
  /// What the workers are at, for the message about one who does not come: "worker 1 reads sample 7
  /// (<source>) of batch 3, …".
  std::string activity() const;

 private:
  struct State;
  void start_threads();

  const int64_t workers_;
  std::chrono::milliseconds stop_timeout_{0};
  std::shared_ptr<State> state_;
};

}  // namespace bellows::data
