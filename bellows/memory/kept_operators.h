// Operators whose results a checkpointed call keeps, so that they are not run again. What autograd
// saves while such an operator runs is mostly one of its arguments or results, or a view of one:
// that is noted, and made again from the recomputed argument or the kept result. Anything else (a
// mask, a sum of exponentials) is kept. Internal.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "bellows/device/interceptor.h"
#include "bellows/memory/surroundings.h"

namespace bellows::memory::detail {

class KeptOperators {
 public:
  /// Names with or without "aten::".
  KeptOperators(const std::vector<std::string>& names, std::vector<c10::Device> devices);

  bool any() const { return !names_.empty(); }
  /// First time: runs and keeps. Throws ValueError for an operator that cannot be kept.
  OperatorHandler first();
  /// Tells what autograd saved, while an operator runs; nothing otherwise.
  void saved(const at::Tensor& tensor);
  /// Again: gives kept results, and what was saved to `save`. Throws CheckpointError where
  /// another operator comes.
  OperatorHandler again(std::function<void(const at::Tensor&)> save);

 private:
  enum class From { argument, result, kept };
  struct Saved {
    From from = From::kept;
    size_t index = 0;  // of the argument or result
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;  // in elements, from the argument's or result's own
    at::Tensor kept;
  };
  struct Result {
    c10::IValue value;  // a detached tensor, or anything else
    bool requires_grad = false;
    uint32_t version = 0;
    bool copied = false;  // as the program changes the real one in place
  };
  struct Kept {
    std::string name;
    std::vector<Result> results;
    std::vector<Saved> saved;
    std::optional<RandomStates> random;  // afterwards, where it draws
  };

  bool wants(const OperatorCall& call) const;
  void copy_what_changes(const OperatorCall& call);
  static Saved describe(const at::Tensor& tensor, const std::vector<c10::IValue>& arguments,
                        const std::vector<c10::IValue>& results);
  static at::Tensor make(const Saved& saved, const std::vector<c10::IValue>& arguments,
                         const std::vector<Result>& results);

  std::vector<std::string> names_;
  std::vector<c10::Device> devices_;
  std::vector<Kept> kept_;
  std::vector<at::Tensor>* watched_ = nullptr;  // while an operator runs
};

}  // namespace bellows::memory::detail
