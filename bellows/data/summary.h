// What a data set consists of, found out by reading all of it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bellows/data/dataset.h"
#include "bellows/data/loader.h"
#include "bellows/data/stream.h"

namespace bellows::data {

/// One entry of the samples: the place it has in all of them.
struct FieldSummary {
  /// How many are of which type: "uint8", "float32" (tensors), "integer", "string", …
  std::map<std::string, int64_t> types;
  int64_t tensors = 0;
  /// Of tensors: the smallest and the largest size of each dimension, where all have as many.
  std::vector<int64_t> least, most;
  bool ranks_differ = false;
};

struct Summary {
  /// That could be read.
  int64_t samples = 0;
  /// By path: "0", "1" of lists, keys of dictionaries.
  std::map<std::string, FieldSummary> fields;
  /// Samples of each class; empty where samples have none.
  std::map<int64_t, int64_t> classes;
  /// Samples, and whole files, that cannot be read, and the first of them; index -1: a file.
  int64_t damaged = 0;
  std::vector<SkippedSample> first_damaged;
};

/// A sample's class: a whole number at the end of a list, or the value of "cls", "target", "label",
/// "class" or "index" in a dictionary; -1 where there is none.
int64_t class_of(const Tree& sample);

struct SummaryOptions {
  /// Threads that read; see LoaderOptions.
  int64_t workers = 0;
  /// How many damaged ones are kept in `first_damaged`, at most 100 a data set.
  int64_t most_damaged = 10;
  /// Called with each sample that could be read, in order; on the calling thread.
  std::function<void(const Tree& sample)> on_sample = nullptr;
  /// Called now and then with how many were read of how many in this data set; on the calling
  /// thread.
  std::function<void(int64_t done, int64_t all)> on_progress = nullptr;
};

/// Reads all samples of the data sets that are added. Not thread-safe.
class Summarizer {
 public:
  explicit Summarizer(SummaryOptions options) : options_(std::move(options)) {}
  void add(std::shared_ptr<const Dataset> dataset);
  /// Damage that the stream cannot go on after is counted as one file.
  void add(std::shared_ptr<const StreamDataset> stream);
  /// A file that cannot be opened.
  void add_damage(const std::string& reason);
  const Summary& summary() const { return summary_; }

 private:
  void read(Loader& loader);
  void count(const Tree& sample);
  void damage(int64_t index, const std::string& reason);

  SummaryOptions options_;
  Summary summary_;
};

}  // namespace bellows::data
