// A root directory for checkpoints, a small model and small parts, for the tests of checkpoints.
#pragma once

#include <filesystem>
#include <string>
#include <unistd.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "bellows/checkpoint/checkpoint.h"
#include "bellows/core/error.h"

namespace bellows::checkpoint {

namespace fs = std::filesystem;

/// In memory where the machine has such a directory: a sweep over all calls syncs thousands of
/// times.
inline fs::path new_directory() {
  std::error_code ignored;
  const bool memory = ::access("/dev/shm", W_OK) == 0;
  std::string pattern =
      (memory ? std::string("/dev/shm/") : ::testing::TempDir()) + "bellows-checkpoint-XXXXXX";
  return ::mkdtemp(pattern.data());
}

/// Holds whatever tree it is given; refuses what is no dictionary with "value".
class FakePart : public Stateful {
 public:
  explicit FakePart(Tree value = {}) : value_(std::move(value)) {}
  Tree state_dict() const override { return Tree::Dict{{"value", value_}}; }
  void load_state_dict(const Tree& state) override {
    ++loads;
    if (refuses && loads == 1) throw ValueError("a part that refuses");
    value_ = state.at("value").map([](const at::Tensor& tensor) { return tensor.clone(); });
  }
  const Tree& value() const { return value_; }
  int loads = 0;
  bool refuses = false;

 private:
  Tree value_;
};

/// A run at some point: all that it holds is `value`.
struct FakeRun {
  explicit FakeRun(double value)
      : weight(at::full({3, 4}, value)),
        optimizer(Tree::Dict{{"lr", value}, {"fc.weight", at::full({2}, value)}}),
        loader(Tree(static_cast<int64_t>(value))) {}

  nn::Model model() const {
    return nn::from_function([](const Tree& input) { return input; }, {{"fc.weight", weight}});
  }
  Parts parts() const { return {{"optimizer", &optimizer}, {"loader", &loader}}; }
  MutableParts mutable_parts() { return {{"optimizer", &optimizer}, {"loader", &loader}}; }

  /// Whether all of it is of this value; anything mixed is neither.
  bool is(double value) const {
    return at::equal(weight, at::full({3, 4}, value)) &&
           at::equal(optimizer.value().at("fc.weight").tensor(), at::full({2}, value)) &&
           optimizer.value().at("lr").number() == value && loader.value().integer() == value;
  }

  at::Tensor weight;
  FakePart optimizer;
  FakePart loader;
};

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() : folder_(new_directory()) {}
  ~CheckpointTest() override { fs::remove_all(folder_); }

  fs::path root() const { return folder_ / "checkpoints"; }
  fs::path save_run(int64_t step, double value) const {
    const FakeRun run(value);
    return save(root(), step, run.model(), run.parts());
  }
  static FakeRun load_run(const fs::path& directory) {
    FakeRun run(-1);
    load(directory, run.model(), run.mutable_parts());
    return run;
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root())) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }

 private:
  fs::path folder_;
};

template <class Fn>
std::string error_of(Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace bellows::checkpoint
