#include "bellows/launch/launch.h"

#include <algorithm>
#include <csignal>
#include <functional>
#include <memory>
#include <poll.h>
#include <unistd.h>

#include "bellows/core/clock.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/launch/binding.h"
#include "bellows/launch/console.h"
#include "bellows/launch/environment.h"
#include "bellows/launch/generation.h"
#include "bellows/launch/nodes.h"
#include "bellows/launch/own_process.h"
#include "bellows/launch/report.h"
#include "bellows/launch/verdict.h"

namespace bellows::launch {
namespace {

using namespace std::chrono_literals;
using Time = Clock::Duration;

constexpr Time kAgentPause = 20ms;      // between two looks at ranks' messages
constexpr Time kProgressPause = 200ms;  // until a progress bar without a line feed is shown
constexpr Time kAfterSecondSignal = 1s;
constexpr Time kSettling = 100ms;  // until a program that has just started may answer signals
constexpr Time kSpared = 1s;       // for a rank in trouble to end by itself
constexpr Time kSweep = 50ms;

Time now() {
  return monotonic_clock().now();
}

/// Ranks know SIGINT and SIGTERM as the request to save; a hang-up is one too.
int passed_on(int signal) {
  return signal == SIGINT ? SIGINT : SIGTERM;
}

Failure failure_of(const Rank& rank) {
  const bool killed = rank.code() > 128 && !rank.ended_by(SIGABRT);
  return {rank.number, std::max(rank.code(), 0), killed, how_it_ended(rank)};
}

class Launcher {
 public:
  Launcher(const Options& options, Nodes& nodes, int out, int err)
      : options_(options),
        nodes_(nodes),
        program_(find_program(options.program.at(0))),
        signals_(options.stop_signals),
        console_(out, err),
        run_id_(options.run_id.empty() ? random_hex(8) : options.run_id),
        logs_(options, run_id_),
        job_{options,
             program_,
             run_id_,
             random_hex(16),
             threads_per_rank(usable_cores(), options.ranks),
             files_.before(),
             cpus_of_ranks(options),
             logs_,
             guard_,
             signals_} {}

  int run();

 private:
  /// What became readable, and what is then done.
  struct Source {
    int fd;
    short events;
    std::function<void()> act;
  };

  void introduce();
  Order next_order();
  void run_generation(const Assignment& node);
  Outcome outcome();
  std::vector<Source> sources();
  void wait_for_something();
  int poll_timeout() const;
  void show_progress();
  void handle_signals();
  void handle_stop(int signal);
  void ask(int signal, int times);
  void handle_orders();
  void obey(const Order& order);
  void handle_ends();
  void end_all(int signal);
  void keep_deadlines();
  void finish_output();

  std::deque<Rank>& ranks() { return generation_->ranks(); }

  const Options& options_;
  Nodes& nodes_;
  const std::string program_;
  const FileLimit files_;
  const Subreaper subreaper_;
  const SignalQueue signals_;
  Console console_;
  const std::string run_id_;
  const LogFolder logs_;
  const Guard guard_;
  const Job job_;
  std::unique_ptr<Generation> generation_;
  Rank* first_failed_ = nullptr;
  bool waiting_ = true;  // for an order: nothing runs
  int stop_signal_ = 0;  // what somebody sent to have the job ended
  int stops_ = 0;        // how often
  int own_stops_ = 0;    // of these, to this launcher
  bool ending_ = false;
  std::optional<Order> last_;         // the order to finish, where it came while ranks ran
  std::optional<Time> stop_at_;       // the request to end is passed on
  std::optional<Time> kill_at_;       // SIGKILL for all
  std::optional<Time> spared_until_;  // then the first failed gets its SIGTERM too
  int most_messages_ = -1;            // of a rank in this round
  Time next_agent_{};
};

void Launcher::introduce() {
  for (const auto& note : options_.notes) console_.say("bellows launch: " + note + "\n");
  if (!job_.threads.empty()) {
    console_.say(concat("bellows launch: OMP_NUM_THREADS=", job_.threads, " for each of ",
                        options_.ranks, " ranks (", usable_cores(),
                        " cores); set it to have another number\n"));
  }
  for (size_t rank = 0; rank < job_.cpus.size(); ++rank) {
    console_.say(concat("bellows launch: local rank ", rank, " is bound to CPUs ",
                        cpu_list(job_.cpus[rank]), "\n"));
  }
  if (!logs_.path().empty()) {
    console_.say("bellows launch: ranks' output goes to " + logs_.path().string() + "\n");
  }
}

void Launcher::end_all(int signal) {
  ending_ = true;
  const bool spare = first_failed_ != nullptr && first_failed_->running();
  if (spare) spared_until_ = now() + kSpared;
  generation_->signal(signal, spare ? first_failed_ : nullptr);
  kill_at_ = now() + options_.shutdown_timeout;
}

void Launcher::keep_deadlines() {
  if (stop_at_ && !ending_ && now() >= *stop_at_) {
    const auto within = std::chrono::ceil<std::chrono::seconds>(options_.shutdown_timeout);
    for (const auto& rank : ranks()) rank.agent.ask_to_stop(within);
    end_all(passed_on(stop_signal_));
  }
  if (spared_until_ && now() >= *spared_until_) {
    spared_until_.reset();
    first_failed_->signal(SIGTERM);
  }
  if (ending_ && !generation_->any_running()) generation_->ask_strays();
  if (!kill_at_ || now() < *kill_at_) return;
  generation_->signal(SIGKILL);
  kill_at_ = now() + kSweep;  // again and again, until nothing is left
}

void Launcher::handle_ends() {
  const auto ended = generation_->reap();
  if (ending_ || ended.empty()) return;
  if (Rank* first = first_failure(ranks(), ended)) {
    if (saved(*first)) return ask(SIGTERM, ++own_stops_);  // somebody else asked it
    first_failed_ = first;
    nodes_.failed(failure_of(*first));
    end_all(SIGTERM);
  } else if (!generation_->any_running() && !generation_->gone()) {
    end_all(SIGTERM);  // what they have left behind
  }
}

/// A request to end that has come `times` times: the same one may come by several ways.
void Launcher::ask(int signal, int times) {
  if (own_stops_ == times) nodes_.asked(signal, times);
  while (stops_ < times) handle_stop(signal);
}

void Launcher::handle_stop(int signal) {
  ++stops_;
  if (stop_signal_ == 0) stop_signal_ = signal;
  if (waiting_) return;
  if (ending_) {
    generation_->signal(passed_on(signal));
    kill_at_ = std::min(*kill_at_, now() + (stops_ > 2 ? 0s : kAfterSecondSignal));
  } else {
    stop_at_ = stops_ > 1 ? now() : std::max(now(), ranks().back().started + kSettling);
  }
}

void Launcher::obey(const Order& order) {
  console_.say(order.text);
  switch (order.kind) {
    case Order::Kind::tell:
      break;
    case Order::Kind::ask:
      ask(order.signal, order.times);
      break;
    case Order::Kind::finish:
      last_ = order;
      last_->text.clear();
      [[fallthrough]];
    default:
      if (!ending_) end_all(SIGTERM);
  }
}

void Launcher::handle_orders() {
  while (const auto order = nodes_.next()) obey(*order);
}

void Launcher::handle_signals() {
  while (const auto signal = signals_.next()) {
    switch (*signal) {
      case SIGCHLD:
        if (!waiting_) handle_ends();
        break;
      case SIGQUIT:
        console_.say(nodes_.describe());
        if (waiting_) break;
        for (auto& rank : ranks()) rank.agent.drain_all();
        console_.say(state_report(ranks()));
        break;
      case SIGTSTP:
        if (!waiting_)
          for (auto& rank : ranks()) rank.signal(SIGTSTP);
        console_.flush();
        ::kill(::getpid(), SIGSTOP);
        break;
      case SIGCONT:
        if (!waiting_)
          for (auto& rank : ranks()) rank.signal(SIGCONT);
        break;
      default:
        ask(*signal, ++own_stops_);
    }
  }
}

int Launcher::poll_timeout() const {
  Time until = Time::max();
  const auto by = [&](Time time) { until = std::min(until, time); };
  if (stop_at_ && !ending_) by(*stop_at_);
  if (kill_at_) by(*kill_at_);
  if (spared_until_) by(*spared_until_);
  if (next_agent_ > now()) by(next_agent_);
  if (ending_ && !generation_->any_running()) by(now() + kSweep);
  for (const auto& rank : generation_->ranks()) {
    for (const auto* output : {&rank.out, &rank.err}) {
      if (output->shown && output->lines.has_progress()) by(output->last + kProgressPause);
    }
  }
  if (until == Time::max()) return -1;
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(until - now()).count();
  return static_cast<int>(std::clamp<int64_t>(wait, 0, 60'000));
}

std::vector<Launcher::Source> Launcher::sources() {
  std::vector<Source> all{{signals_.fd(), POLLIN, [] {}}};
  if (nodes_.fd() >= 0) all.push_back({nodes_.fd(), POLLIN, [this] { handle_orders(); }});
  for (const Streams stream : {kOut, kErr}) {
    Sink& sink = console_.of(stream);
    if (sink.pending()) all.push_back({sink.fd(), POLLOUT, [] {}});
    for (auto& rank : ranks()) {
      RankOutput& output = stream == kOut ? rank.out : rank.err;
      if (!output.pipe.open() || console_.full()) continue;
      all.push_back({output.pipe.get(), POLLIN, [&] { output.read(console_, sink); }});
    }
  }
  if (now() < next_agent_) return all;
  for (auto& rank : ranks()) {
    if (rank.agent.fd() < 0) continue;
    all.push_back({rank.agent.fd(), POLLIN,
                   [&] { most_messages_ = std::max(most_messages_, rank.agent.drain()); }});
  }
  return all;
}

void Launcher::wait_for_something() {
  const std::vector<Source> all = sources();
  std::vector<pollfd> entries;
  for (const auto& source : all) entries.push_back({source.fd, source.events, 0});
  if (::poll(entries.data(), entries.size(), poll_timeout()) < 0) return;  // EINTR: look again
  most_messages_ = -1;
  for (size_t i = 0; i < all.size(); ++i) {
    if (entries[i].revents != 0) all[i].act();
  }
  // Few messages: look again a little later, so that each of them does not wake the launcher.
  if (most_messages_ >= 0) next_agent_ = most_messages_ > 64 ? Time{} : now() + kAgentPause;
  show_progress();
  console_.flush();
}

void Launcher::show_progress() {
  for (auto& rank : ranks()) {
    for (const Streams stream : {kOut, kErr}) {
      RankOutput& output = stream == kOut ? rank.out : rank.err;
      if (output.shown && output.lines.has_progress() && now() >= output.last + kProgressPause) {
        output.lines.show_progress(console_.of(stream).queue());
      }
    }
  }
}

/// Waits for whoever reads the output; a signal ends that.
void Launcher::finish_output() {
  for (console_.flush(); console_.pending(); console_.flush()) {
    pollfd entries[3] = {{signals_.fd(), POLLIN, 0}, {-1, POLLOUT, 0}, {-1, POLLOUT, 0}};
    if (console_.of(kOut).pending()) entries[1].fd = console_.of(kOut).fd();
    if (console_.of(kErr).pending()) entries[2].fd = console_.of(kErr).fd();
    ::poll(entries, 3, -1);
    const auto signal = signals_.next();
    if (signal && *signal != SIGCHLD && *signal != SIGCONT) return;
  }
}

/// The next order to start or to finish. A second request to end is answered here.
Order Launcher::next_order() {
  const int enough = std::max(own_stops_, 1);  // requests that were answered
  for (;;) {
    if (last_) return *last_;
    while (auto order = nodes_.next()) {
      if (order->kind == Order::Kind::start || order->kind == Order::Kind::finish) return *order;
      console_.say(order->text);
      if (order->kind == Order::Kind::ask) ask(order->signal, order->times);
    }
    handle_signals();
    if (own_stops_ > enough) {
      last_.emplace();
      last_->code = 128 + stop_signal_;
      continue;
    }
    console_.flush();
    pollfd entries[4] = {
        {signals_.fd(), POLLIN, 0}, {nodes_.fd(), POLLIN, 0}, {-1, POLLOUT, 0}, {-1, POLLOUT, 0}};
    if (console_.of(kOut).pending()) entries[2].fd = console_.of(kOut).fd();
    if (console_.of(kErr).pending()) entries[3].fd = console_.of(kErr).fd();
    ::poll(entries, 4, -1);
  }
}

void Launcher::run_generation(const Assignment& node) {
  first_failed_ = nullptr;
  ending_ = false;
  kill_at_.reset();
  spared_until_.reset();
  generation_.reset();  // frees a port that was named
  try {
    generation_ = std::make_unique<Generation>(job_, node);
  } catch (...) {
    finish_output();  // what was said of the generations before
    throw;
  }
  waiting_ = false;
  if (stop_signal_ != 0) stop_at_ = now() + kSettling;  // asked while they were started
  while (!generation_->gone()) {
    wait_for_something();
    handle_signals();
    keep_deadlines();
  }
  for (auto& rank : ranks()) {
    rank.out.finish(console_, console_.of(kOut));
    rank.err.finish(console_, console_.of(kErr));
  }
  waiting_ = true;
  if (first_failed_ == nullptr && stop_signal_ != 0) first_failed_ = failure_while_ending(ranks());
}

Outcome Launcher::outcome() {
  Outcome outcome;
  outcome.code = exit_code_of(ranks(), first_failed_, stop_signal_);
  outcome.asked = stop_signal_;
  if (first_failed_ == nullptr) return outcome;
  outcome.failure = failure_of(*first_failed_);
  const double grace = std::chrono::duration<double>(options_.shutdown_timeout).count();
  outcome.report = failure_report(ranks(), {first_failed_->number, grace});
  console_.say(outcome.report);
  return outcome;
}

int Launcher::run() {
  nodes_.begin();
  introduce();
  for (;;) {
    const Order order = next_order();
    console_.say(order.text);
    if (order.kind == Order::Kind::finish) {
      finish_output();
      return order.code;
    }
    run_generation(order.assignment);
    nodes_.ended(outcome());
  }
}

}  // namespace

int launch(const Options& options, int out, int err) {
  OneNode alone(options);
  return launch(options, alone, out, err);
}

int launch(const Options& options, Nodes& nodes, int out, int err) {
  if (options.program.empty()) throw ValueError("no program to launch");
  if (options.ranks < 1) {
    throw ValueError(concat("got ", options.ranks, " ranks, expected 1 or more"));
  }
  open_standard_streams();
  Options complete = options;
  complete.redirects.resize(static_cast<size_t>(options.ranks));
  complete.tee.resize(static_cast<size_t>(options.ranks));
  return Launcher(complete, nodes, out, err).run();
}

}  // namespace bellows::launch
