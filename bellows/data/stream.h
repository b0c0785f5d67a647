// Datasets that are read from front to back: shards of an archive, a pipe, a socket.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bellows/data/dataset.h"

namespace bellows::data {

/// One sample as it was read, not yet decoded.
struct Record {
  Tree data;
  /// Tells the sample from all others of the dataset: its random numbers depend on it.
  int64_t index = 0;
  /// For messages: file and entry.
  std::string source;
};

/// Reads the records of one pass. Used by one thread at a time.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  /// Nothing at the end.
  virtual std::optional<Record> next() = 0;
};

/// The records of an epoch come in one order, whoever reads them: workers take them in turn from
/// one reader, and decode them at the same time. Immutable and thread-safe.
class StreamDataset {
 public:
  virtual ~StreamDataset() = default;

  /// Records of an epoch, of this rank; never changes. An endless stream says how many it calls an
  /// epoch.
  virtual int64_t size() const = 0;
  /// A reader that begins with record `first` of the pass, `first` in [0, size()].
  virtual std::unique_ptr<RecordReader> open(const Pass& pass, int64_t first) const = 0;
  /// The sample; called from many threads at once. The default is the record's data.
  virtual Tree decode(Record record, const Pass& pass) const;

  /// Ranks that share the order, the records of all of them, and a hash of what it depends on
  /// (equal on all of them): what a state is checked against.
  virtual int64_t world_size() const { return 1; }
  virtual int64_t global_size() const { return size(); }
  virtual uint64_t order_hash(int64_t epoch) const;
};

}  // namespace bellows::data
