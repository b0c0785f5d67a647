// Datasets made of others.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "bellows/data/dataset.h"
#include "bellows/data/stream.h"

namespace bellows::data {

/// Changes a sample; `random` depends on (seed, epoch, index) alone. Called from many threads at
/// once. Where several maps stand on top of each other, each draws its own numbers.
using SampleTransform = std::function<Tree(Tree sample, Random& random)>;

/// `dataset` with `transform` applied to each sample as it is read. `get` is the first epoch's with
/// seed 0.
std::shared_ptr<Dataset> map(std::shared_ptr<const Dataset> dataset, SampleTransform transform);

/// The same of a stream: of each record, once it is decoded.
std::shared_ptr<StreamDataset> map(std::shared_ptr<const StreamDataset> stream,
                                   SampleTransform transform);

/// Changes a whole batch: `randoms[i]` is that of its sample i, the one that `map` would draw from;
/// `memory` is for new tensors. Called from many threads at once.
using BatchMap = std::function<Tree(Tree batch, std::span<Random> randoms, BatchMemory& memory)>;

/// `dataset` with `transform` applied to each batch as it is read, so that each sample's random
/// numbers are its own whatever batch it comes in. A sample alone is a batch of one: its tensors
/// lose their first dimension.
std::shared_ptr<BatchDataset> map_batches(std::shared_ptr<const BatchDataset> dataset,
                                          BatchMap transform);

/// One after the other, as torch.utils.data.ConcatDataset. Random numbers go by the index in the
/// whole.
std::shared_ptr<Dataset> concat_datasets(std::vector<std::shared_ptr<const Dataset>> datasets);

/// Samples `indices` of `dataset`, as torch.utils.data.Subset. Random numbers go by the index in
/// the whole. Throws ValueError for one that `dataset` does not have.
std::shared_ptr<Dataset> subset(std::shared_ptr<const Dataset> dataset,
                                std::vector<int64_t> indices);

/// Keeps each sample in memory once it was read, until `most_bytes` of tensors and strings are
/// kept; further ones are read anew each time. What is random below it is drawn once, so put random
/// maps on top. Every read copies.
std::shared_ptr<Dataset> cache(std::shared_ptr<const Dataset> dataset, size_t most_bytes);

}  // namespace bellows::data
