#include "bellows/data/worker_team.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "bellows/core/text.h"
#include "bellows/data/single_thread.h"

namespace bellows::data {
namespace {

struct Outcome {
  PreparedBatch batch;
  std::exception_ptr error;
};

}  // namespace

struct WorkerTeam::State {
  std::mutex mutex;
  std::condition_variable wake;   // workers: something to do, or to end
  std::condition_variable ready;  // the owner: a batch is ready, or a worker has ended
  std::shared_ptr<const Dataset> dataset;
  int64_t depth = 1;

  std::shared_ptr<BatchReader> reader;  // null: nothing to do
  int64_t next = 0;
  int64_t end = 0;
  std::set<int64_t> done;
  std::set<int64_t> failed;  // what was thrown for these was seen
  std::set<int64_t> again;   // failed ones that were asked for again
  int64_t out = 0;           // ready or in preparation
  std::map<int64_t, Outcome> prepared;

  bool stopping = false;
  int64_t ended = 0;
  std::vector<std::unique_ptr<Reading>> readings;  // one for each worker
  std::vector<std::thread> threads;

  // With the lock: the number to be made next. A failed one still counts in `out`, so that there
  // is always room to make it again.
  std::optional<int64_t> pick() {
    if (!reader) return std::nullopt;
    if (!again.empty()) return again.extract(again.begin()).value();
    if (out >= depth) return std::nullopt;
    while (next < end && done.contains(next)) ++next;
    if (next == end) return std::nullopt;
    ++out;
    return next++;
  }

  void run(Reading& reading) {
    std::unique_lock lock(mutex);
    for (;;) {
      std::optional<int64_t> number;
      wake.wait(lock, [&] { return stopping || (number = pick()); });
      if (stopping) break;
      const auto mine = reader;
      reading.batch = *number;
      lock.unlock();
      Outcome outcome = make(*mine, *number, reading);
      lock.lock();
      reading.batch = -1;
      if (mine != reader) continue;  // of an epoch that was left
      prepared.emplace(*number, std::move(outcome));
      ready.notify_all();
    }
    lock.unlock();
    reading.own = nullptr;
    lock.lock();
    ++ended;
    ready.notify_all();
  }

  Outcome make(BatchReader& from, int64_t number, Reading& reading) const {
    Outcome outcome;
    try {
      if (!reading.asked_for_own && dataset) {
        reading.own = dataset->for_worker();
        reading.asked_for_own = true;
      }
      outcome.batch = from.read(number, reading);
    } catch (...) {
      outcome.error = std::current_exception();
      reading.own = nullptr;  // one that has thrown is not used again
      reading.asked_for_own = false;
    }
    reading.sample = -1;
    return outcome;
  }
};

WorkerTeam::WorkerTeam(int64_t workers, int64_t depth, std::shared_ptr<const Dataset> dataset)
    : workers_(workers), state_(std::make_shared<State>()) {
  state_->dataset = std::move(dataset);
  state_->depth = depth;
}

WorkerTeam::~WorkerTeam() {
  stop();
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->wake.notify_all();
  const auto started = std::ssize(state_->threads);
  const bool all =
      state_->ready.wait_for(lock, stop_timeout_, [&] { return state_->ended == started; });
  lock.unlock();
  for (std::thread& thread : state_->threads) all ? thread.join() : thread.detach();
}

void WorkerTeam::start_threads() {
  try {
    while (std::ssize(state_->threads) < workers_) {
      state_->readings.push_back(std::make_unique<Reading>());
      Reading* reading = state_->readings.back().get();
      state_->threads.emplace_back([state = state_, reading] {
        use_single_thread_of_libtorch();
        state->run(*reading);
      });
    }
  } catch (const std::system_error& error) {
    state_->readings.pop_back();
    throw EnvironmentError(concat("loader: could start only ", state_->threads.size(), " of ",
                                  workers_, " workers: ", error.code().message(),
                                  "; ask for fewer, or raise the limit (ulimit -u)"));
  }
}

void WorkerTeam::stop() {
  std::map<int64_t, Outcome> dropped;  // freed without the lock
  std::shared_ptr<BatchReader> reader;
  {
    const std::lock_guard lock(state_->mutex);
    reader = std::exchange(state_->reader, nullptr);
    state_->prepared.swap(dropped);
    state_->again.clear();
    state_->failed.clear();
    state_->out = 0;
  }
  if (reader) reader->cancel();
}

void WorkerTeam::serve(std::shared_ptr<BatchReader> reader, int64_t first, int64_t end,
                       const std::set<int64_t>& done) {
  stop();
  {
    const std::lock_guard lock(state_->mutex);
    state_->next = first;
    state_->end = end;
    state_->done = done;
    state_->reader = std::move(reader);
    start_threads();
  }
  state_->wake.notify_all();
}

std::optional<WorkerTeam::Taken> WorkerTeam::take(std::optional<int64_t> number,
                                                  std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  if (!state_->failed.empty()) {
    state_->again.merge(state_->failed);
    state_->wake.notify_all();
  }
  auto& prepared = state_->prepared;
  auto found = prepared.end();
  const auto there = [&] {
    found = number ? prepared.find(*number) : prepared.begin();
    return found != prepared.end();
  };
  if (timeout.count() == 0) {
    state_->ready.wait(lock, there);
  } else if (!state_->ready.wait_for(lock, timeout, there)) {
    return std::nullopt;
  }
  const int64_t got = found->first;
  Outcome outcome = std::move(found->second);
  prepared.erase(found);
  if (outcome.error) {
    state_->failed.insert(got);
  } else {
    --state_->out;
  }
  lock.unlock();
  state_->wake.notify_all();
  if (outcome.error) std::rethrow_exception(outcome.error);
  return Taken{got, std::move(outcome.batch)};
}

std::string WorkerTeam::activity() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> parts;
  for (size_t i = 0; i < state_->readings.size(); ++i) {
    const int64_t batch = state_->readings[i]->batch;
    const int64_t sample = state_->readings[i]->sample;
    if (batch < 0) continue;
    std::string part = concat("worker ", i, " reads batch ", batch);
    if (sample >= 0) {
      const std::string source = state_->reader ? state_->reader->source(sample) : "";
      part += concat(", sample ", sample, source.empty() ? "" : " (" + source + ")");
    }
    parts.push_back(part);
  }
  return parts.empty() ? "no worker is reading" : join(parts, "; ");
}

}  // namespace bellows::data
