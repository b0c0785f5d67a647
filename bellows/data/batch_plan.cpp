#include "bellows/data/batch_plan.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::data {
namespace {

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

  // The list of integers; empty after noting that it is missing or something else.
  std::set<int64_t> numbers(const std::string& key) {
    std::set<int64_t> numbers;
    const Tree* entry = find(key);
    if (entry == nullptr) return numbers;
    if (entry->is_list() && std::all_of(entry->list().begin(), entry->list().end(),
                                        [](const Tree& item) { return item.is_int(); })) {
      for (const Tree& item : entry->list()) numbers.insert(item.integer());
    } else {
      note(concat(key, " is ", text_of(*entry), ", expected a list of integers"));
    }
    return numbers;
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

BatchPlan::BatchPlan(int64_t dataset_size, std::shared_ptr<const BatchSampler> sampler)
    : dataset_size_(dataset_size), sampler_(std::move(sampler)) {
  if (sampler_ == nullptr) throw ValueError("loader: the sampler is null");
  if (batches() == 0 && !sampler_->may_be_empty())
    throw ValueError("loader: the sampler has no batch, so an epoch would have none");
  list_ = checked_list(0);
}

std::shared_ptr<const BatchList> BatchPlan::checked_list(int64_t epoch) const {
  auto list = std::make_shared<const BatchList>(sampler_->batches(epoch));
  if (list->size() != batches()) {
    throw ValueError(concat("loader: the sampler gave ", list->size(), " batches for epoch ", epoch,
                            ", expected its size, ", batches()));
  }
  int64_t begin = 0;
  for (const int64_t end : list->ends) {
    if (end < begin || end > std::ssize(list->indices)) {
      throw ValueError(concat("loader: the sampler's batches of epoch ", epoch, " end at ", end,
                              " after ", begin, ", expected rising places among its ",
                              list->indices.size(), " indices"));
    }
    begin = end;
  }
  const auto& order = list->indices;
  const auto bad = std::find_if(order.begin(), order.end(),
                                [&](int64_t index) { return index < 0 || index >= dataset_size_; });
  if (bad != order.end()) {
    throw ValueError(concat("loader: the sampler gave index ", *bad, " at place ",
                            bad - order.begin(), " of epoch ", epoch, ", expected 0 to ",
                            dataset_size_ - 1, ": build the sampler with the dataset's size"));
  }
  return list;
}

int64_t BatchPlan::hash(int64_t epoch) const {
  if (hashed_epoch_ != epoch) {
    hash_ = static_cast<int64_t>(sampler_->order_hash(epoch));
    hashed_epoch_ = epoch;
  }
  return hash_;
}

void BatchPlan::go_to(int64_t epoch, int64_t position) {
  if (epoch < 0) throw ValueError(concat("loader: got epoch ", epoch, ", expected 0 or more"));
  if (position < 0 || position > batches()) {
    throw ValueError(
        concat("loader: got batch ", position, " to start at, expected 0 to ", batches()));
  }
  if (epoch != epoch_) list_ = checked_list(epoch);
  epoch_ = epoch;
  first_ = position;
  ahead_.clear();
}

void BatchPlan::consume(int64_t number) {
  ahead_.insert(number);
  while (ahead_.erase(first_) > 0) ++first_;
}

Tree::Dict BatchPlan::settings() const {
  Tree::Dict settings = sampler_->settings();
  settings.insert(
      {{"batch_size", batch_size() * sampler_->world_size()}, {"dataset_size", dataset_size_}});
  return settings;
}

Tree BatchPlan::state_dict() const {
  Tree::Dict state = settings();
  Tree::List ahead(ahead_.begin(), ahead_.end());
  state.insert({{"epoch", epoch_},
                {"position", first_},
                {"ahead", std::move(ahead)},
                {"batches", batches()},
                {"order_hash", hash(epoch_)}});
  return state;
}

void BatchPlan::load_state_dict(const Tree& state) {
  StateChecker checker(state);
  const int64_t epoch = checker.integer("epoch", 0);
  int64_t position = checker.integer("position", 0);
  const int64_t saved_batches = checker.integer("batches", 0);
  const int64_t order_hash = checker.integer("order_hash");
  std::set<int64_t> ahead = checker.numbers("ahead");
  // With another number of ranks the last, incomplete batch may be there or not.
  if (position == saved_batches) position = batches();
  if (position > batches()) {
    checker.note(concat("position is ", position, ", expected at most the ", batches(),
                        " batches of an epoch"));
  }
  if (!ahead.empty() && (*ahead.begin() <= position || *ahead.rbegin() >= saved_batches)) {
    checker.note(concat("ahead names batches ", *ahead.begin(), " to ", *ahead.rbegin(),
                        ", expected batches after ", position, " and below ", saved_batches));
  }
  for (const auto& [key, value] : settings()) checker.expect(key, value);
  checker.finish();
  auto list = checked_list(epoch);
  if (hash(epoch) != order_hash) {
    throw ValueError(
        concat("loader: cannot continue from this state: the sampler's order of epoch ", epoch,
               " is not the one the state was saved with; build the sampler with "
               "the same seed and settings, or start an epoch afresh"));
  }
  std::erase_if(ahead, [&](int64_t number) { return number >= batches(); });
  list_ = std::move(list);
  epoch_ = epoch;
  first_ = position;
  ahead_ = std::move(ahead);
}

}  // namespace bellows::data
