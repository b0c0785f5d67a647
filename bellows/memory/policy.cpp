#include "bellows/memory/policy.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <c10/core/GradMode.h>
#include <c10/core/Storage.h>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"

namespace bellows::memory {
namespace {

using Kind = CheckpointPolicy::Kind;

constexpr const char* kForms =
    "none, blocks, every:K, segments, segments:N, budget:BYTES (as 2GiB) or operators:NAME,NAME";

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw ValueError(concat("recomputation policy: got '", text, "'", why, ", expected ", kForms));
}

int64_t count_of(const std::string& text, const std::string& digits) {
  int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc() || stop != end || value < 1)
    refuse(text, concat(" with '", digits, "' for a number of 1 or more"));
  return value;
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> out;
  for (size_t start = 0; start <= list.size();) {
    const size_t end = std::min(list.find(',', start), list.size());
    if (end > start) out.push_back(list.substr(start, end - start));
    start = end + 1;
  }
  return out;
}

at::Tensor run_plainly(const std::vector<nn::Block>& blocks, size_t from, size_t to,
                       at::Tensor input) {
  for (size_t i = from; i < to; ++i) input = blocks[i].forward(input);
  return input;
}

at::Tensor run_recomputed(const std::vector<nn::Block>& blocks, size_t from, size_t to,
                          at::Tensor input, const std::shared_ptr<const void>& owner,
                          CheckpointOptions options) {
  const auto first = blocks.begin() + static_cast<std::ptrdiff_t>(from);
  const std::vector<nn::Block> own(first, first + static_cast<std::ptrdiff_t>(to - from));
  for (const nn::Block& block : own)
    options.buffers.insert(options.buffers.end(), block.buffers.begin(), block.buffers.end());
  return checkpoint_with(
      options, [own, owner](const at::Tensor& x) { return run_plainly(own, 0, own.size(), x); },
      input);
}

int64_t storage_bytes(const at::Tensor& tensor) {
  return tensor.has_storage() ? static_cast<int64_t>(tensor.storage().nbytes()) : 0;
}

// Bytes of different memory among the tensors it is told of.
class Counted {
 public:
  explicit Counted(const at::Tensor& except) { seen(except); }
  void add(const at::Tensor& tensor, bool parameter) {
    if (!parameter && tensor.has_storage() && !seen(tensor)) bytes_ += storage_bytes(tensor);
  }
  int64_t bytes() const { return bytes_; }

 private:
  // Weak handles keep an address from being used again.
  bool seen(const at::Tensor& tensor) {
    if (!tensor.has_storage()) return false;
    auto* address = tensor.storage().unsafeGetStorageImpl();
    const bool known = std::any_of(all_.begin(), all_.end(), [&](const auto& one) {
      return one._unsafe_get_target() == address;
    });
    if (!known) all_.push_back(tensor.storage().getWeakStorageImpl());
    return known;
  }
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> all_;
  int64_t bytes_ = 0;
};

}  // namespace

std::string CheckpointPolicy::text() const {
  switch (kind) {
    case Kind::none:
      return "none";
    case Kind::every:
      return number == 1 ? "blocks" : concat("every:", number);
    case Kind::segments:
      return number == 0 ? "segments" : concat("segments:", number);
    case Kind::budget:
      return concat("budget:", number);
    case Kind::operators:
      return "operators:" + join(names, ",");
  }
  return "";
}

CheckpointPolicy parse_checkpoint_policy(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  const bool alone = colon == std::string::npos;
  if (alone && kind == "none") return CheckpointPolicy::none();
  if (alone && kind == "blocks") return CheckpointPolicy::every_block();
  if (alone && kind == "segments") return CheckpointPolicy::segments();
  if (alone) refuse(text, "");
  if (kind == "every") return CheckpointPolicy::every(count_of(text, rest));
  if (kind == "segments") return CheckpointPolicy::segments(count_of(text, rest));
  if (kind == "budget")
    return CheckpointPolicy::budget(parse_bytes(rest, "recomputation policy: budget"));
  if (kind == "operators" && !words_of(rest).empty())
    return CheckpointPolicy::operators(words_of(rest));
  refuse(text, "");
}

BlockCheckpointing::BlockCheckpointing(CheckpointPolicy policy) : policy_(std::move(policy)) {
  const int64_t least = policy_.kind == Kind::every || policy_.kind == Kind::budget ? 1 : 0;
  if (policy_.number < least) refuse(policy_.text(), "");
  if (policy_.kind == Kind::operators && policy_.names.empty()) refuse(policy_.text(), "");
}

at::Tensor BlockCheckpointing::run(const std::vector<nn::Block>& blocks, at::Tensor input,
                                   const std::shared_ptr<const void>& owner) {
  recomputed_.assign(blocks.size(), false);
  if (policy_.kind == Kind::none || blocks.empty() || !c10::GradMode::is_enabled())
    return run_plainly(blocks, 0, blocks.size(), std::move(input));
  if (policy_.kind == Kind::segments) {
    recomputed_.assign(blocks.size(), true);
    return run_segments(blocks, std::move(input), owner);
  }
  if (policy_.kind == Kind::budget) {
    std::vector<int64_t> shape = input.sizes().vec();
    shape.push_back(static_cast<int64_t>(blocks.size()));
    shape.push_back(static_cast<int64_t>(input.scalar_type()));
    const auto found = plans_.find(shape);
    if (found == plans_.end()) {
      recomputed_.assign(blocks.size(), true);
      at::Tensor output = measure(blocks, std::move(input), owner);
      std::swap(plans_[shape], recomputed_);
      recomputed_.assign(blocks.size(), true);
      return output;
    }
    recomputed_ = found->second;
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (policy_.kind == Kind::every)
      recomputed_[i] = (static_cast<int64_t>(i) + 1) % policy_.number == 0;
    if (policy_.kind == Kind::operators) recomputed_[i] = true;
    CheckpointOptions options;
    options.save_operators = policy_.names;
    input = recomputed_[i] ? run_recomputed(blocks, i, i + 1, std::move(input), owner, options)
                           : run_plainly(blocks, i, i + 1, std::move(input));
  }
  return input;
}

at::Tensor BlockCheckpointing::run_segments(const std::vector<nn::Block>& blocks, at::Tensor input,
                                            const std::shared_ptr<const void>& owner) const {
  const auto root = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(blocks.size()))));
  const size_t wanted = policy_.number == 0 ? root : static_cast<size_t>(policy_.number);
  const size_t count = std::clamp<size_t>(wanted, 1, blocks.size());
  for (size_t i = 0; i < count; ++i)
    input = run_recomputed(blocks, i * blocks.size() / count, (i + 1) * blocks.size() / count,
                           std::move(input), owner, {});
  return input;
}

// Leaves the plan in recomputed_.
at::Tensor BlockCheckpointing::measure(const std::vector<nn::Block>& blocks, at::Tensor input,
                                       const std::shared_ptr<const void>& owner) {
  std::vector<int64_t> inputs, saved;
  for (size_t i = 0; i < blocks.size(); ++i) {
    inputs.push_back(storage_bytes(input));
    const auto counted = std::make_shared<Counted>(input);
    CheckpointOptions options;
    options.observe = [counted](const at::Tensor& tensor, bool parameter) {
      counted->add(tensor, parameter);
    };
    input = run_recomputed(blocks, i, i + 1, std::move(input), owner, options);
    saved.push_back(counted->bytes());
  }
  recomputed_ = plan(inputs, saved);
  return input;
}

// From the last block, whose recomputation would come first, as many as fit are left as they are.
std::vector<bool> BlockCheckpointing::plan(const std::vector<int64_t>& inputs,
                                           const std::vector<int64_t>& saved) const {
  int64_t kept = 0;
  for (const int64_t bytes : inputs) kept += bytes;
  std::vector<bool> recomputed(saved.size(), true);
  const auto needed = [&](int64_t plain) {
    int64_t most = 0;
    for (size_t i = 0; i < saved.size(); ++i)
      if (recomputed[i]) most = std::max(most, saved[i]);
    return plain + most;
  };
  if (needed(kept) > policy_.number)
    log::warn_once(concat("recomputation: a budget of ",
                          human_bytes(static_cast<double>(policy_.number)),
                          " is too little: with every block recomputed, the blocks need ",
                          human_bytes(static_cast<double>(needed(kept)))));
  for (size_t i = saved.size(); i-- > 0;) {
    recomputed[i] = false;
    if (needed(kept + saved[i]) <= policy_.number) {
      kept += saved[i];
    } else {
      recomputed[i] = true;
    }
  }
  return recomputed;
}

namespace {

class Checkpointed : public nn::Model::Interface {
 public:
  Checkpointed(nn::Model model, CheckpointPolicy policy)
      : model_(std::make_shared<nn::Model>(std::move(model))), policy_(policy), blocks_(policy) {}

  Tree forward(const Tree& input) override {
    bool had_blocks = false;
    const nn::BlockRunnerGuard guard([&](const std::vector<nn::Block>& blocks, at::Tensor x) {
      had_blocks = true;
      return blocks_.run(blocks, std::move(x), model_);
    });
    Tree output = model_->forward(input);
    if (!had_blocks && policy_.kind != Kind::none)
      log::warn_once(concat("recomputation: '", policy_.text(),
                            "' has no effect: the model has no row of blocks (nn::run_blocks)"));
    return output;
  }
  NamedTensors named_parameters() const override { return model_->named_parameters(); }
  NamedTensors named_buffers() const override { return model_->named_buffers(); }
  nn::Ties ties() const override { return model_->ties(); }
  void train(bool on) override { model_->train(on); }
  bool is_training() const override { return model_->is_training(); }
  void to(c10::Device device) override { model_->to(device); }
  std::shared_ptr<Interface> deep_copy() const override {
    return std::make_shared<Checkpointed>(model_->deep_copy(), policy_);
  }

 private:
  std::shared_ptr<nn::Model> model_;
  CheckpointPolicy policy_;
  BlockCheckpointing blocks_;
};

}  // namespace

nn::Model checkpointed(nn::Model model, CheckpointPolicy policy) {
  return nn::Model(std::make_shared<Checkpointed>(std::move(model), std::move(policy)));
}

}  // namespace bellows::memory
