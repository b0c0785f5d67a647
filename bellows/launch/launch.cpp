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
#include "bellows/launch/console.h"
#include "bellows/launch/environment.h"
#include "bellows/launch/generation.h"
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

class Launcher {
 public:
  Launcher(const Options& options, int out, int err)
      : options_(options),
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
  void run_generation(int number);
  std::vector<Source> sources();
  void wait_for_something();
  int poll_timeout() const;
  void show_progress();
  void handle_signals();
  void handle_stop(int signal);
  void handle_ends();
  void end_all(int signal);
  void keep_deadlines();
  void finish_output();

  std::deque<Rank>& ranks() { return generation_->ranks(); }

  const Options& options_;
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
  int stop_signal_ = 0;  // what somebody sent to have the job ended
  int stops_ = 0;        // how often
  bool ending_ = false;
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
    if (saved(*first)) return handle_stop(SIGTERM);  // somebody else asked it: so are the others
    first_failed_ = first;
    end_all(SIGTERM);
  } else if (!generation_->any_running() && !generation_->gone()) {
    end_all(SIGTERM);  // what they have left behind
  }
}

void Launcher::handle_stop(int signal) {
  ++stops_;
  if (stop_signal_ == 0) stop_signal_ = signal;
  if (ending_) {
    generation_->signal(passed_on(signal));
    kill_at_ = std::min(*kill_at_, now() + (stops_ > 2 ? 0s : kAfterSecondSignal));
  } else {
    stop_at_ = stops_ > 1 ? now() : std::max(now(), ranks().back().started + kSettling);
  }
}

void Launcher::handle_signals() {
  while (const auto signal = signals_.next()) {
    switch (*signal) {
      case SIGCHLD:
        handle_ends();
        break;
      case SIGQUIT:
        for (auto& rank : ranks()) rank.agent.drain_all();
        console_.say(state_report(ranks()));
        break;
      case SIGTSTP:
        for (auto& rank : ranks()) rank.signal(SIGTSTP);
        console_.flush();
        ::kill(::getpid(), SIGSTOP);
        break;
      case SIGCONT:
        for (auto& rank : ranks()) rank.signal(SIGCONT);
        break;
      default:
        handle_stop(*signal);
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

void Launcher::run_generation(int number) {
  first_failed_ = nullptr;
  ending_ = false;
  kill_at_.reset();
  spared_until_.reset();
  generation_.reset();  // frees a port that was named
  try {
    generation_ = std::make_unique<Generation>(job_, number);
  } catch (...) {
    finish_output();  // what was said of the generations before
    throw;
  }
  while (!generation_->gone()) {
    wait_for_something();
    handle_signals();
    keep_deadlines();
  }
  for (auto& rank : ranks()) {
    rank.out.finish(console_, console_.of(kOut));
    rank.err.finish(console_, console_.of(kErr));
  }
  if (first_failed_ == nullptr && stop_signal_ != 0) first_failed_ = failure_while_ending(ranks());
}

int Launcher::run() {
  introduce();
  for (int number = 0;; ++number) {
    run_generation(number);
    if (first_failed_ == nullptr) break;
    const double grace = std::chrono::duration<double>(options_.shutdown_timeout).count();
    console_.say(failure_report(ranks(), {first_failed_->number, grace}));
    if (number == options_.max_restarts || stop_signal_ != 0) break;
    console_.say(concat("bellows launch: all ranks are started anew (restart ", number + 1, " of ",
                        options_.max_restarts, ")\n"));
  }
  const int code = exit_code_of(ranks(), first_failed_, stop_signal_);
  if (first_failed_ == nullptr && code > 128) {
    console_.say(concat("bellows launch: ended by ", signal_name(stop_signal_),
                        "; not every rank saved its state\n"));
  }
  finish_output();
  return code;
}

}  // namespace

int launch(const Options& options, int out, int err) {
  if (options.program.empty()) throw ValueError("no program to launch");
  if (options.ranks < 1) {
    throw ValueError(concat("got ", options.ranks, " ranks, expected 1 or more"));
  }
  open_standard_streams();
  Options complete = options;
  complete.redirects.resize(static_cast<size_t>(options.ranks));
  complete.tee.resize(static_cast<size_t>(options.ranks));
  return Launcher(complete, out, err).run();
}

}  // namespace bellows::launch
