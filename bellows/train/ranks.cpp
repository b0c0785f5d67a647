#include "bellows/train/ranks.h"

#include <exception>
#include <utility>

#include <ATen/ops/empty.h>

#include "bellows/core/error.h"
#include "bellows/core/exit_code.h"
#include "bellows/core/text.h"
#include "bellows/train/error_text.h"

namespace bellows::train {
namespace {

// What another rank can be told of an exception.
Tree description(const std::exception& error) {
  return Tree::Dict{{"text", message_of(error)}, {"code", static_cast<int64_t>(exit_code(error))}};
}

[[noreturn]] void rethrow(int64_t rank, const Tree& failure) {
  const std::string text = concat("rank ", rank, ": ", failure.at("text").string());
  switch (static_cast<ExitCode>(failure.at("code").integer())) {
    case ExitCode::usage:
      throw ValueError(text);
    case ExitCode::environment:
      throw EnvironmentError(text);
    default:
      throw Error(text);
  }
}

}  // namespace

void Vote::start(const Values& own) {
  sums_ = at::empty({3}, at::kLong);
  auto* sums = sums_.mutable_data_ptr<int64_t>();
  sums[0] = own.samples;
  sums[1] = own.stop;
  sums[2] = own.interrupted;
  work_ = group_.async().all_reduce(sums_);
}

Vote::Values Vote::wait() {
  work_.wait();
  const auto* sums = sums_.const_data_ptr<int64_t>();
  return {.samples = sums[0], .stop = sums[1] > 0, .interrupted = sums[2] > 0};
}

void RandomOfRanks::gather() {
  if (group_.size() == 1) return;
  std::vector<Tree> states = group_.all_gather_object(own_.state_dict());
  gathered_ = Tree::Dict{{"ranks", Tree::List(states.begin(), states.end())}};
}

Tree RandomOfRanks::state_dict() const {
  if (group_.size() == 1) return own_.state_dict();
  return gathered_.empty() ? Tree(Tree::Dict{{"own", own_.state_dict()}}) : gathered_;
}

void RandomOfRanks::load_state_dict(const Tree& state) {
  if (state.contains("own")) return own_.load_state_dict(state.at("own"));
  if (!state.contains("ranks")) {
    if (group_.rank() == 0) own_.load_state_dict(state);
    return;
  }
  const Tree::List& states = state.at("ranks").list();
  const bool same = std::ssize(states) == group_.size();
  if (same || group_.rank() == 0) own_.load_state_dict(states.at(same ? group_.rank() : 0));
}

Tree on_first_rank(const parallel::Group& group, const std::function<Tree()>& work) {
  if (group.size() == 1) return work();
  Tree result;
  if (group.rank() != 0) {
    result = group.broadcast_object({});
    if (result.contains("failure")) rethrow(0, result.at("failure"));
    return result.at("result");
  }
  try {
    result = work();
  } catch (const std::exception& error) {
    group.broadcast_object(Tree::Dict{{"failure", description(error)}});
    throw;
  }
  group.broadcast_object(Tree::Dict{{"result", result}});
  return result;
}

void on_all_ranks(const parallel::Group& group, const std::function<void()>& work) {
  if (group.size() == 1) return work();
  std::exception_ptr own;
  Tree failure;
  try {
    work();
  } catch (const std::exception& error) {
    own = std::current_exception();
    failure = description(error);
  }
  const std::vector<Tree> failures = group.all_gather_object(failure);
  if (own) std::rethrow_exception(own);
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank].empty()) rethrow(static_cast<int64_t>(rank), failures[rank]);
  }
}

}  // namespace bellows::train
