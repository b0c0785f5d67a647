// The loader that prepares batches ahead on threads of its own.
#pragma once

#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "bellows/core/thread_pool.h"
#include "bellows/data/batch_plan.h"
#include "bellows/data/loader.h"

namespace bellows::data {

/// Keeps up to two batches a worker in preparation or ready, in the order of the epoch. Leaving an
/// epoch early, `start` and destruction wait for the batches in preparation and no longer. A
/// batch's error reaches the `next` that would have given it.
class PrefetchLoader : public Loader {
 public:
  /// workers >= 1.
  PrefetchLoader(std::shared_ptr<const Dataset> dataset, BatchPlan plan, int64_t workers);
  ~PrefetchLoader() override;

  int64_t batches() const override { return plan_.batches(); }
  int64_t samples() const override { return plan_.samples(); }
  int64_t batch_size() const override { return plan_.batch_size(); }
  int64_t epoch() const override { return plan_.epoch(); }
  int64_t position() const override { return plan_.position(); }
  void start(int64_t epoch, int64_t first_batch) override;
  std::optional<Batch> next() override;
  Tree state_dict() const override { return plan_.state_dict(); }
  void load_state_dict(const Tree& state) override;

 private:
  /// Lends each task a dataset that no other task uses, where the dataset asks for that.
  class Readers {
   public:
    explicit Readers(std::shared_ptr<const Dataset> shared) : shared_(std::move(shared)) {}
    Batch read(std::span<const int64_t> indices);

   private:
    std::shared_ptr<const Dataset> shared_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Dataset>> idle_;
  };

  void fill();
  void drop_prepared();

  Readers readers_;
  BatchPlan plan_;
  size_t depth_;
  std::deque<std::future<Batch>> prepared_;  // from plan_.position() on
  ThreadPool pool_;                          // last: its threads end before what they use
};

}  // namespace bellows::data
