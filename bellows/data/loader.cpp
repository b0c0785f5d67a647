#include "bellows/data/loader.h"

#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/batch_plan.h"
#include "bellows/data/prefetch_loader.h"

namespace bellows::data {
namespace {

class InThreadLoader : public Loader {
 public:
  InThreadLoader(std::shared_ptr<const Dataset> dataset, BatchPlan plan)
      : dataset_(std::move(dataset)), plan_(std::move(plan)) {}

  int64_t batches() const override { return plan_.batches(); }
  int64_t samples() const override { return plan_.samples(); }
  int64_t batch_size() const override { return plan_.batch_size(); }
  int64_t epoch() const override { return plan_.epoch(); }
  int64_t position() const override { return plan_.position(); }
  void start(int64_t epoch, int64_t first_batch) override { plan_.go_to(epoch, first_batch); }

  std::optional<Batch> next() override {
    if (plan_.position() == plan_.batches()) return std::nullopt;
    const auto indices = plan_.batch(plan_.position());
    Batch batch{dataset_->get_batch(indices), static_cast<int64_t>(indices.size())};
    plan_.advance();
    return batch;
  }

  Tree state_dict() const override { return plan_.state_dict(); }
  void load_state_dict(const Tree& state) override { plan_.load_state_dict(state); }

 private:
  std::shared_ptr<const Dataset> dataset_;
  BatchPlan plan_;
};

}  // namespace

std::unique_ptr<Loader> make_loader(std::shared_ptr<const Dataset> dataset,
                                    std::shared_ptr<const Sampler> sampler, LoaderOptions options) {
  if (dataset == nullptr) throw ValueError("loader: the dataset is null");
  if (options.workers < 0) {
    throw ValueError(concat("loader: workers must be 0 or more, got ", options.workers));
  }
  BatchPlan plan(dataset->size(), std::move(sampler), options.batch_size, options.drop_last);
  if (options.workers > 0) {
    return std::make_unique<PrefetchLoader>(std::move(dataset), std::move(plan), options.workers);
  }
  return std::make_unique<InThreadLoader>(std::move(dataset), std::move(plan));
}

}  // namespace bellows::data
