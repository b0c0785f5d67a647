// Helpers shared by the tests of loaders.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "bellows/data/loader.h"
#include "bellows/data/tensor_dataset.h"
#include "tests/data/support.h"

namespace bellows::data::test {

/// Sample i is a list of the number that a function makes of i; counts calls and threads.
class Probe : public Dataset {
 public:
  using Value = std::function<int64_t(int64_t index, Random& random)>;
  explicit Probe(
      int64_t size, Value value = [](int64_t index, Random&) { return index; })
      : size_(size), value_(std::move(value)) {}

  int64_t size() const override { return size_; }
  Tree get(int64_t index) const override { return read(index, Pass{}); }
  Tree read(int64_t index, const Pass& pass) const override {
    Random random = pass.random(index);
    const int64_t value = value_(index, random);
    const std::lock_guard lock(mutex_);
    threads_.insert(std::this_thread::get_id());
    ++calls;
    return Tree::List{at::full({}, value, at::kLong)};
  }
  std::string source(int64_t index) const override {
    return "folder/" + std::to_string(index) + ".jpg";
  }
  std::set<std::thread::id> threads() const {
    const std::lock_guard lock(mutex_);
    return threads_;
  }
  mutable std::atomic<int64_t> calls = 0;

 private:
  int64_t size_;
  Value value_;
  mutable std::mutex mutex_;
  mutable std::set<std::thread::id> threads_;
};

inline std::vector<int64_t> numbers_of(const Batch& batch) {
  const at::Tensor& tensor = batch.data[0].tensor();
  EXPECT_EQ(tensor.size(0), batch.samples);
  const auto* data = tensor.const_data_ptr<int64_t>();
  return {data, data + batch.samples};
}

inline std::vector<std::vector<int64_t>> rest_of_epoch(Loader& loader) {
  std::vector<std::vector<int64_t>> batches;
  while (const auto batch = loader.next()) batches.push_back(numbers_of(*batch));
  return batches;
}

}  // namespace bellows::data::test
