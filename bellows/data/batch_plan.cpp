#include "bellows/data/batch_plan.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

// FNV-1a over whole indices: tells orders apart, no more.
int64_t hash_of(const std::vector<int64_t>& order) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const int64_t index : order) hash = (hash ^ static_cast<uint64_t>(index)) * 0x100000001b3u;
  return static_cast<int64_t>(hash);
}

std::string text_of(const Tree& value) {
  if (value.is_bool()) return value.boolean() ? "true" : "false";
  if (value.is_int()) return std::to_string(value.integer());
  return concat("a value of kind ", value.kind());
}

// Collects everything that is wrong with a saved state, to be thrown at once.
class StateChecker {
 public:
  explicit StateChecker(const Tree& state) : state_(state.dict()) {}

  // The entry, or `minimum` after noting that it is missing or not an integer of at least that.
  int64_t integer(const std::string& key, int64_t minimum = std::numeric_limits<int64_t>::min()) {
    const Tree* entry = find(key);
    if (entry == nullptr) return minimum;
    if (entry->is_int() && entry->integer() >= minimum) return entry->integer();
    note(concat(key, " is ", text_of(*entry), ", expected an integer of at least ", minimum));
    return minimum;
  }

  void expect(const std::string& key, const Tree& here) {
    const Tree* entry = find(key);
    if (entry != nullptr && text_of(*entry) != text_of(here)) {
      note(concat(key, " was ", text_of(*entry), " when the state was saved and is ", text_of(here),
                  " here"));
    }
  }

  void note(const std::string& problem) { problems_.push_back(problem); }

  void finish() {
    for (const auto& [key, _] : state_) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end())
        note(key + " is unexpected");
    }
    if (problems_.empty()) return;
    throw ValueError(concat("loader: cannot continue from this state: ", join(problems_, "; "),
                            "; restore the settings it was saved with, or start an epoch afresh"));
  }

 private:
  const Tree* find(const std::string& key) {
    known_.push_back(key);
    const auto found = state_.find(key);
    if (found != state_.end()) return &found->second;
    note(key + " is missing");
    return nullptr;
  }

  const Tree::Dict& state_;
  std::vector<std::string> known_;
  std::vector<std::string> problems_;
};

}  // namespace

BatchPlan::BatchPlan(int64_t dataset_size, std::shared_ptr<const Sampler> sampler,
                     int64_t batch_size, bool drop_last)
    : dataset_size_(dataset_size),
      sampler_(std::move(sampler)),
      batch_size_(batch_size),
      drop_last_(drop_last) {
  if (sampler_ == nullptr) throw ValueError("loader: the sampler is null");
  if (batch_size_ < 1)
    throw ValueError(concat("loader: got batch size ", batch_size_, ", expected at least 1"));
  if (sampler_->size() == 0)
    throw ValueError("loader: the sampler has size 0, so an epoch would have no batch");
  if (batches() == 0) {
    throw ValueError(concat("loader: an epoch would have no batch: ", sampler_->size(),
                            " samples do not fill one batch of ", batch_size_,
                            " and drop_last is on; lower the batch size or switch drop_last off"));
  }
  order_ = checked_order(0);
}

int64_t BatchPlan::batches() const {
  const int64_t whole = sampler_->size() / batch_size_;
  return whole + (!drop_last_ && sampler_->size() % batch_size_ != 0 ? 1 : 0);
}

int64_t BatchPlan::samples() const {
  return drop_last_ ? batches() * batch_size_ : sampler_->size();
}

std::vector<int64_t> BatchPlan::checked_order(int64_t epoch) const {
  std::vector<int64_t> order = sampler_->indices(epoch);
  if (static_cast<int64_t>(order.size()) != sampler_->size()) {
    throw ValueError(concat("loader: the sampler gave ", order.size(), " indices for epoch ", epoch,
                            ", expected its size, ", sampler_->size()));
  }
  const auto bad = std::find_if(order.begin(), order.end(),
                                [&](int64_t index) { return index < 0 || index >= dataset_size_; });
  if (bad != order.end()) {
    throw ValueError(concat("loader: the sampler gave index ", *bad, " at place ",
                            bad - order.begin(), " of epoch ", epoch, ", expected 0 to ",
                            dataset_size_ - 1, ": build the sampler with the dataset's size"));
  }
  return order;
}

void BatchPlan::go_to(int64_t epoch, int64_t position) {
  if (epoch < 0) throw ValueError(concat("loader: got epoch ", epoch, ", expected 0 or more"));
  if (position < 0 || position > batches()) {
    throw ValueError(
        concat("loader: got batch ", position, " to start at, expected 0 to ", batches()));
  }
  if (epoch != epoch_) order_ = checked_order(epoch);
  epoch_ = epoch;
  position_ = position;
}

std::span<const int64_t> BatchPlan::batch(int64_t batch) const {
  const auto begin = static_cast<size_t>(batch * batch_size_);
  const auto all = std::span(order_);
  return all.subspan(begin, std::min(static_cast<size_t>(batch_size_), all.size() - begin));
}

Tree BatchPlan::settings() const {
  return Tree::Dict{{"batch_size", batch_size_},
                    {"drop_last", drop_last_},
                    {"dataset_size", dataset_size_},
                    {"sampler_size", sampler_->size()}};
}

Tree BatchPlan::state_dict() const {
  Tree state = settings();
  state.dict().insert(
      {{"epoch", epoch_}, {"position", position_}, {"order_hash", hash_of(order_)}});
  return state;
}

void BatchPlan::load_state_dict(const Tree& state) {
  StateChecker checker(state);
  const int64_t epoch = checker.integer("epoch", 0);
  const int64_t position = checker.integer("position", 0);
  const int64_t order_hash = checker.integer("order_hash");
  if (position > batches()) {
    checker.note(concat("position is ", position, ", expected at most the ", batches(),
                        " batches of an epoch"));
  }
  const Tree here = settings();
  for (const auto& [key, value] : here.dict()) checker.expect(key, value);
  checker.finish();
  std::vector<int64_t> order = checked_order(epoch);
  if (hash_of(order) != order_hash) {
    throw ValueError(
        concat("loader: cannot continue from this state: the sampler's order of epoch ", epoch,
               " is not the one the state was saved with; build the sampler with "
               "the same seed and settings, or start an epoch afresh"));
  }
  order_ = std::move(order);
  epoch_ = epoch;
  position_ = position;
}

}  // namespace bellows::data
