// Tar shards as a stream of samples, in WebDataset's layout: files next to each other whose names
// agree up to the first dot are one sample ("0001.jpg", "0001.cls").
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bellows/data/distributed_sampler.h"
#include "bellows/data/image.h"
#include "bellows/data/stream.h"

namespace bellows::data {

/// Whether a file of this name is taken for a tar shard: it ends in .tar, in .tar and a
/// compression's .gz, .bz2, .xz, .zst or .lz4, or in .tgz, .tbz2, .txz or .tzst.
bool is_shard_name(const std::filesystem::path& path);

struct TarOptions {
  /// What a sample is: a list of these parts, each the first there is of some endings ("jpg;png",
  /// "cls"). Empty: a dictionary of all parts by ending, and the name as "__key__".
  std::vector<std::string> fields = {};
  /// Every epoch has the shards in another order, and, with a buffer, mixes samples: each that
  /// comes out is drawn from so many read ahead (at most so many lie in memory).
  bool shuffle = false;
  int64_t shuffle_buffer = 1000;
  uint64_t seed = 0;
  /// Samples are dealt out in turn, after shuffling: with any number of ranks, each step of all of
  /// them has the same samples. The others' are skipped over, which costs nothing in shards that
  /// are not compressed.
  DistributedOptions ranks = {};
  /// Samples of each shard. Empty: counted when it is opened, by reading all headers (compressed
  /// shards: everything).
  std::vector<int64_t> counts = {};
  ImageOptions image = {};
  /// Parts that are larger are refused.
  int64_t most_part_bytes = int64_t{1} << 30;
};

/// Decodes parts by ending: jpg, jpeg, png to uint8 [C, H, W]; npy to a tensor; cls, index to an
/// integer; all others stay strings of bytes. To begin in the middle of an epoch, shards are read
/// up to there. Errors name shard and entry: CorruptFileError for damage, another number of samples
/// than counted, an ending twice; SampleError for parts that cannot be decoded or are missing.
class TarStream : public StreamDataset {
 public:
  /// Throws ValueError for no shards and options out of range; FileError; CorruptFileError.
  TarStream(std::vector<std::filesystem::path> shards, TarOptions options);
  ~TarStream() override;
  int64_t size() const override { return size_; }
  std::unique_ptr<RecordReader> open(const Pass& pass, int64_t first) const override;
  Tree decode(Record record, const Pass& pass) const override;
  int64_t world_size() const override { return options_.ranks.world_size; }
  int64_t global_size() const override { return total_; }
  uint64_t order_hash(int64_t epoch) const override;
  /// Samples of each shard, to be given as `counts` the next time.
  const std::vector<int64_t>& counts() const { return options_.counts; }

 private:
  class Reader;
  class Order;
  Tree decode_part(const std::string& ending, const std::string& bytes) const;

  std::vector<std::filesystem::path> shards_;
  TarOptions options_;
  int64_t total_ = 0;  // samples of all ranks
  int64_t size_ = 0;
};

}  // namespace bellows::data
