// Every kind of loader: stopped at every batch of two epochs and gone on elsewhere, with another
// number of workers or ranks, it gives what an unbroken one gives.
#include <set>
#include <string>

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "bellows/data/combine.h"
#include "bellows/data/distributed_sampler.h"
#include "bellows/data/loader.h"
#include "bellows/data/tar_stream.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/data/tokens.h"
#include "tests/data/image_files.h"
#include "tests/data/loader_support.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::numbers_of;

constexpr int64_t kSamples = 36, kGlobalBatch = 6, kSteps = 2 * kSamples / kGlobalBatch;

class LoaderResumeTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::vector<std::pair<std::string, std::string>> files;
    for (int64_t i = 0; i < kSamples; ++i)
      files.emplace_back(std::to_string(i) + ".cls", std::to_string(i));
    shards_ = {folder_.write("a.tar", test::tar_bytes({files.begin(), files.begin() + 20})),
               folder_.write("b.tar", test::tar_bytes({files.begin() + 20, files.end()}))};
    std::string tokens;
    for (int64_t i = 0; i < kSamples; ++i) tokens += {static_cast<char>(i), 0};
    tokens_ = folder_.write("tokens", tokens + std::string(2, '\0'));
  }

  /// Adds a random thousand to a sample, so that what is drawn for it counts too.
  static Tree augmented(Tree sample, Random& random) {
    Tree& value = sample.list()[0];
    const int64_t drawn = 1000 * random.below(1000);
    value = value.is_tensor() ? Tree(value.tensor().add(drawn)) : Tree(value.integer() + drawn);
    return sample;
  }

  std::shared_ptr<const Sampler> order(const std::string& kind) const {
    if (kind == "weighted") {
      std::vector<double> weights(kSamples, 1.0);
      weights[3] = 20;
      return std::make_shared<WeightedRandomSampler>(weights, kSamples, true, 7);
    }
    if (kind == "replacement")
      return std::make_shared<RandomSampler>(
          RandomSampler::with_replacement(kSamples, kSamples, 7));
    if (kind == "subset") {
      std::vector<int64_t> indices;
      for (int64_t i = 0; i < kSamples; ++i) indices.push_back(kSamples - 1 - i);
      return std::make_shared<SubsetSampler>(indices, 7);
    }
    return std::make_shared<RandomSampler>(kSamples, 7);
  }

  std::unique_ptr<Loader> make(int64_t workers, int64_t rank = 0, int64_t ranks = 1) const {
    const std::string& kind = GetParam();
    LoaderOptions options{
        .batch_size = kGlobalBatch / ranks, .workers = workers, .prefetch = 3, .seed = 5};
    const DistributedOptions dealt{rank, ranks};
    if (kind == "stream") {
      auto stream = std::make_shared<TarStream>(
          shards_,
          TarOptions{
              .fields = {"cls"}, .shuffle = true, .shuffle_buffer = 8, .seed = 7, .ranks = dealt});
      return make_loader(map(stream, augmented), options);
    }
    std::shared_ptr<const Dataset> dataset =
        std::make_shared<TensorDataset>(std::vector<at::Tensor>{at::arange(kSamples)});
    if (kind == "tokens")
      dataset = std::make_shared<TokenDataset>(std::vector<std::filesystem::path>{tokens_},
                                               TokenOptions{.context = 1});
    if (kind == "buckets") {
      std::vector<int64_t> lengths;
      for (int64_t i = 0; i < kSamples; ++i) lengths.push_back(i % 10);
      options.batch_size = 1;  // the sampler says it
      return make_loader(map(dataset, augmented),
                         std::make_shared<LengthBuckets>(
                             lengths, LengthBucketOptions{.batch_size = kGlobalBatch / ranks,
                                                          .bucket_batches = 2,
                                                          .seed = 7,
                                                          .rank = rank,
                                                          .world_size = ranks}),
                         options);
    }
    if (kind != "batch" && kind != "tokens") dataset = map(dataset, augmented);
    return make_loader(dataset, std::make_shared<DistributedSampler>(order(kind), dealt), options);
  }

  static std::vector<int64_t> numbers(const Batch& batch) {
    return numbers_of({Tree::List{batch.data[0].tensor().reshape({batch.samples})}, batch.samples});
  }
  /// The next batch, of the next epoch where this one is over.
  static std::vector<int64_t> next(Loader& loader) {
    auto batch = loader.next();
    if (!batch) {
      loader.start(loader.epoch() + 1);
      batch = loader.next();
    }
    return numbers(*batch);
  }

  test::TemporaryFolder folder_;
  std::vector<std::filesystem::path> shards_;
  std::filesystem::path tokens_;
};

TEST_P(LoaderResumeTest, AtEveryBatchAndAtEachOneInTurnWithOtherNumbersOfWorkers) {
  std::vector<std::vector<int64_t>> expected;
  std::vector<Tree> states;
  const auto unbroken = make(0);
  for (int64_t step = 0; step < kSteps; ++step) {
    states.push_back(unbroken->state_dict());
    expected.push_back(next(*unbroken));
  }
  for (int64_t stop = 0; stop < kSteps; ++stop) {
    const auto resumed = make(stop % 3 == 0 ? 1 : stop % 3 == 1 ? 2 : 4);
    resumed->load_state_dict(states[stop]);
    for (int64_t step = stop; step < kSteps; ++step)
      ASSERT_EQ(next(*resumed), expected[step]) << "stopped at " << stop << ", at step " << step;
  }
  Tree state = states[0];
  for (int64_t step = 0; step < kSteps; ++step) {  // many resumes
    const auto resumed = make(step % 2 == 0 ? 2 : 4);
    resumed->load_state_dict(state);
    ASSERT_EQ(next(*resumed), expected[step]) << "at step " << step;
    state = resumed->state_dict();
  }
}

TEST_P(LoaderResumeTest, AtEveryBatchWithAnotherNumberOfRanksEachStepHasTheSameSamples) {
  using Step = std::multiset<int64_t>;
  std::vector<Step> expected;
  const auto unbroken = make(0);
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto all = next(*unbroken);
    expected.emplace_back(all.begin(), all.end());
  }
  Tree state = make(0)->state_dict();
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t ranks = step % 2 == 0 ? 2 : 1;  // 2 -> 1 -> 2 ...
    Step seen;
    Tree after;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto loader = make(step % 3, rank, ranks);
      loader->load_state_dict(state);
      for (const int64_t number : next(*loader)) seen.insert(number);
      const Tree own = loader->state_dict();
      EXPECT_EQ(own.at("position").integer(), step % (kSteps / 2) + 1);
      after = own;
    }
    EXPECT_EQ(seen, expected[step]) << "at step " << step;
    state = after;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LoaderResumeTest,
                         ::testing::Values("samples", "batch", "weighted", "replacement", "subset",
                                           "buckets", "tokens", "stream"),
                         [](const auto& kind) { return kind.param; });

}  // namespace
}  // namespace bellows::data
