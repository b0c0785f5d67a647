#include "bellows/launch/launch.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bellows/core/clock.h"
#include "bellows/core/error.h"
#include "bellows/core/exit_code.h"
#include "bellows/core/text.h"
#include "bellows/launch/console.h"
#include "bellows/launch/environment.h"
#include "bellows/launch/guard.h"
#include "bellows/launch/log_folder.h"
#include "bellows/launch/master_socket.h"
#include "bellows/launch/rank.h"
#include "bellows/launch/report.h"
#include "bellows/launch/signals.h"

namespace bellows::launch {
namespace {

using namespace std::chrono_literals;
using Time = Clock::Duration;

constexpr Time kAgentPause = 20ms;      // between two looks at a rank's messages
constexpr Time kProgressPause = 200ms;  // until a progress bar without a line feed is shown
constexpr Time kAfterSecondSignal = 1s;
constexpr Time kSweep = 50ms;

Time now() {
  return monotonic_clock().now();
}

std::string random_hex(size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    unsigned char byte = 0;
    if (::getrandom(&byte, 1, 0) != 1) throw EnvironmentError("the kernel gives no random numbers");
    constexpr const char* kDigits = "0123456789abcdef";
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

/// Started with closed standard streams, the next files opened would take their numbers.
void open_standard_streams() {
  for (int fd = 0; fd < 3; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    const int null = ::open("/dev/null", O_RDWR);
    if (null >= 0 && null != fd) ::dup2(null, fd);
  }
}

/// As many descriptors as the machine allows, until destroyed. `before` is what ranks are given.
class FileLimit {
 public:
  FileLimit() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit raised = before_;
    raised.rlim_cur = raised.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &raised);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  unsigned long before() const { return before_.rlim_cur; }

 private:
  rlimit before_{};
};

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
  return text;
}

std::string prefix_of(const Options& options, int rank) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::string text = replaced(options.line_prefix, "${rank}", std::to_string(rank));
  text = replaced(text, "${local_rank}", std::to_string(rank));
  text = replaced(text, "${role_name}", options.role);
  return replaced(text, "${hostname}", host.data());
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
        threads_(threads_per_rank(usable_cores(), options.ranks)) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Launcher() { ::prctl(PR_SET_CHILD_SUBREAPER, 0); }

  int run();

 private:
  enum class State { running, ending };

  void introduce();
  void start(int generation);
  void abandon();
  Rank start_rank(int generation, int number);
  void wait_for_something();
  int poll_timeout() const;
  void handle_signals();
  void handle_stop(int signal);
  void reap();
  void note_end(Rank& rank, int status);
  void judge(const std::vector<Rank*>& ended);
  void end_all(int signal, Time within);
  void keep_deadline();
  void sweep();
  std::vector<pid_t> strays() const;
  bool gone() const;
  void read_outputs(const std::vector<pollfd>& entries);
  void finish_generation();
  void finish_output();
  bool any_running() const;
  int exit_code() const;

  const Options& options_;
  const std::string program_;
  const FileLimit files_;
  SignalQueue signals_;
  Console console_;
  const std::string run_id_, secret_ = random_hex(16);
  const LogFolder logs_;
  const std::string threads_;
  Guard guard_;
  std::unique_ptr<MasterSocket> master_;
  std::deque<Rank> ranks_;
  State state_ = State::running;
  int first_failed_ = -1;  // the rank; -1: none has
  int stop_signal_ = 0;    // what somebody sent to have the job ended
  int stops_ = 0;          // how often
  std::optional<Time> kill_at_;
  Time next_agent_{};
};

void Launcher::introduce() {
  for (const auto& note : options_.notes) console_.say("bellows launch: " + note + "\n");
  if (!threads_.empty()) {
    console_.say(concat("bellows launch: OMP_NUM_THREADS=", threads_, " for each of ",
                        options_.ranks, " ranks (", usable_cores(),
                        " cores); set it to have another number\n"));
  }
  if (!logs_.path().empty()) {
    console_.say("bellows launch: ranks' output goes to " + logs_.path().string() + "\n");
  }
}

Rank Launcher::start_rank(int generation, int number) {
  ChildRequest request;
  request.words = options_.program;
  request.environment =
      rank_environment(options_, {number, generation, master_->port(), run_id_, threads_});
  request.secret = secret_;
  request.files = files_.before();
  if (number == 0) {
    request.inherited = master_->fd();
    request.environment["BELLOWS_MASTER_FD"] = std::to_string(master_->fd());
  }
  Rank rank;
  rank.number = number;
  const auto index = static_cast<size_t>(number);
  for (const Streams stream : {kOut, kErr}) {
    RankOutput& output = stream == kOut ? rank.out : rank.err;
    output.lines = LineStream(prefix_of(options_, number));
    output.shown = (options_.redirects.at(index) & stream) == 0 &&
                   (options_.shown_ranks.empty() || options_.shown_ranks.contains(number));
    output.file = logs_.open(generation, number, stream);
    output.file_path = logs_.file_of(generation, number, stream);
  }
  rank.started = now();
  rank.child = start_child(program_, std::move(request), guard_, signals_);
  rank.out.pipe = std::move(rank.child.out);
  rank.err.pipe = std::move(rank.child.err);
  rank.agent = AgentPeer(std::move(rank.child.agent), number, secret_);
  return rank;
}

void Launcher::start(int generation) {
  ranks_.clear();
  master_.reset();
  master_ = std::make_unique<MasterSocket>(options_.master_address, options_.master_port);
  state_ = State::running;
  first_failed_ = -1;
  kill_at_.reset();
  try {
    for (int number = 0; number < options_.ranks; ++number) {
      ranks_.push_back(start_rank(generation, number));
    }
  } catch (...) {
    abandon();
    throw;
  }
}

/// Ends at once those that have been started.
void Launcher::abandon() {
  for (auto& rank : ranks_) rank.signal(SIGKILL);
  while (!gone()) {
    reap();
    sweep();
    ::poll(nullptr, 0, 1);
  }
  console_.flush();
}

bool Launcher::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running(); });
}

/// Children besides the ranks and the guard: processes that ranks have left behind.
std::vector<pid_t> Launcher::strays() const {
  std::vector<pid_t> found;
  const std::string self = std::to_string(::getpid());
  std::ifstream file("/proc/self/task/" + self + "/children");
  for (pid_t pid = 0; file >> pid;) {
    const bool known =
        pid == guard_.pid() || std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
          return rank.running() && rank.child.pid == pid;
        });
    if (!known) found.push_back(pid);
  }
  return found;
}

bool Launcher::gone() const {
  return !any_running() && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.group_gone;
  }) && strays().empty();
}

void Launcher::end_all(int signal, Time within) {
  state_ = State::ending;
  for (auto& rank : ranks_) rank.signal(signal);
  for (const pid_t pid : strays()) ::kill(pid, signal);
  kill_at_ = now() + within;
}

/// Once the time is over, SIGKILL, again and again until nothing is left.
void Launcher::keep_deadline() {
  if (!kill_at_ || now() < *kill_at_) return;
  for (auto& rank : ranks_) rank.signal(SIGKILL);
  for (const pid_t pid : strays()) ::kill(pid, SIGKILL);
  kill_at_ = now() + kSweep;
}

void Launcher::sweep() {
  for (auto& rank : ranks_) {
    if (rank.running() || rank.group_gone) continue;
    rank.look_at_group();
    if (rank.group_gone) guard_.forget(rank.child.pid);
  }
}

void Launcher::note_end(Rank& rank, int status) {
  rank.status = status;
  rank.ended = now();
  while (rank.agent.drain() > 0) {
  }
  if (rank.number == 0) master_->close();
}

void Launcher::reap() {
  std::vector<Rank*> ended;
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    for (auto& rank : ranks_) {
      if (!rank.running() || rank.child.pid != pid) continue;
      note_end(rank, status);
      ended.push_back(&rank);
    }
  }
  sweep();
  if (!ended.empty()) judge(ended);
}

/// Of those that were found dead together, the one that a signal ended is likely the cause, and the
/// others noticed.
void Launcher::judge(const std::vector<Rank*>& ended) {
  const auto weight = [](const Rank* rank) {
    const bool killed = WIFSIGNALED(*rank->status) && WTERMSIG(*rank->status) != SIGABRT;
    return killed ? 2 : rank->failed() ? 1 : 0;
  };
  const Rank* worst =
      *std::max_element(ended.begin(), ended.end(),
                        [&](const Rank* a, const Rank* b) { return weight(a) < weight(b); });
  if (state_ == State::running && worst->failed()) {
    constexpr int kSaved = static_cast<int>(ExitCode::interrupted);
    if (worst->code() == kSaved) {  // it was asked by somebody else: so are the others now
      handle_stop(SIGTERM);
    } else {
      first_failed_ = worst->number;
      end_all(SIGTERM, options_.shutdown_timeout);
    }
  } else if (state_ == State::running && !any_running() && !gone()) {
    end_all(SIGTERM, options_.shutdown_timeout);  // what they have left behind
  }
}

void Launcher::handle_stop(int signal) {
  ++stops_;
  if (stop_signal_ == 0) stop_signal_ = signal;
  // Ranks know SIGINT and SIGTERM as the request to save; a hang-up is one too.
  const int passed_on = signal == SIGINT ? SIGINT : SIGTERM;
  if (state_ == State::ending) {
    for (auto& rank : ranks_) rank.signal(passed_on);
    kill_at_ =
        std::min(kill_at_.value_or(Time::max()), now() + (stops_ > 2 ? 0s : kAfterSecondSignal));
    return;
  }
  const auto within = std::chrono::ceil<std::chrono::seconds>(options_.shutdown_timeout);
  for (const auto& rank : ranks_) rank.agent.ask_to_stop(within);
  end_all(passed_on, options_.shutdown_timeout);
}

void Launcher::handle_signals() {
  while (const auto signal = signals_.next()) {
    switch (*signal) {
      case SIGCHLD:
        reap();
        break;
      case SIGQUIT:
        for (auto& rank : ranks_) {
          while (rank.agent.drain() > 0) {
          }
        }
        console_.say(state_report(ranks_));
        break;
      case SIGTSTP:
        for (auto& rank : ranks_) rank.signal(SIGTSTP);
        console_.flush();
        ::kill(::getpid(), SIGSTOP);
        break;
      case SIGCONT:
        for (auto& rank : ranks_) {
          if (rank.running()) ::kill(-rank.child.pid, SIGCONT);
        }
        break;
      default:
        handle_stop(*signal);
    }
  }
}

int Launcher::poll_timeout() const {
  Time until = Time::max();
  const auto by = [&](Time time) { until = std::min(until, time); };
  if (kill_at_) by(*kill_at_);
  if (next_agent_ > now()) by(next_agent_);
  if (state_ == State::ending && !any_running()) by(now() + kSweep);
  for (const auto& rank : ranks_) {
    for (const auto* output : {&rank.out, &rank.err}) {
      if (output->shown && output->lines.has_progress()) by(output->last + kProgressPause);
    }
  }
  if (until == Time::max()) return -1;
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(until - now()).count();
  return static_cast<int>(std::clamp<int64_t>(wait, 0, 60'000));
}

void Launcher::wait_for_something() {
  std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0}};
  const auto add = [&](int fd, short events) {
    if (fd >= 0) entries.push_back({fd, events, 0});
  };
  for (const Streams stream : {kOut, kErr}) {
    if (console_.of(stream).pending()) add(console_.of(stream).fd(), POLLOUT);
  }
  const bool agents = now() >= next_agent_;
  for (const auto& rank : ranks_) {
    if (!console_.full()) add(rank.out.pipe.get(), POLLIN);
    if (!console_.full()) add(rank.err.pipe.get(), POLLIN);
    if (agents) add(rank.agent.fd(), POLLIN);
  }
  if (::poll(entries.data(), entries.size(), poll_timeout()) < 0) return;  // EINTR: look again
  read_outputs(entries);
}

void Launcher::read_outputs(const std::vector<pollfd>& entries) {
  const auto ready = [&](int fd) {
    return fd >= 0 && std::any_of(entries.begin(), entries.end(), [&](const pollfd& entry) {
             return entry.fd == fd && entry.revents != 0;
           });
  };
  int most = -1;
  for (auto& rank : ranks_) {
    if (ready(rank.agent.fd())) most = std::max(most, rank.agent.drain());
    for (const Streams stream : {kOut, kErr}) {
      RankOutput& output = stream == kOut ? rank.out : rank.err;
      Sink& sink = console_.of(stream);
      if (ready(output.pipe.get())) output.read(console_, sink);
      if (output.shown && output.lines.has_progress() && now() >= output.last + kProgressPause) {
        output.lines.show_progress(sink.queue());
      }
    }
  }
  // Few messages: look again a little later, so that each of them does not wake the launcher.
  if (most >= 0) next_agent_ = most > 64 ? Time{} : now() + kAgentPause;
  console_.flush();
}

void Launcher::finish_generation() {
  for (auto& rank : ranks_) {
    rank.out.finish(console_, console_.of(kOut));
    rank.err.finish(console_, console_.of(kErr));
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

int Launcher::exit_code() const {
  if (first_failed_ >= 0) return ranks_.at(static_cast<size_t>(first_failed_)).code();
  const auto all = [&](auto test) { return std::all_of(ranks_.begin(), ranks_.end(), test); };
  if (all([](const Rank& rank) { return rank.code() == 0; })) return 0;
  constexpr int kSaved = static_cast<int>(ExitCode::interrupted);
  if (all([](const Rank& rank) { return rank.code() == 0 || rank.code() == kSaved; }))
    return kSaved;
  return 128 + stop_signal_;
}

int Launcher::run() {
  introduce();
  for (int generation = 0;; ++generation) {
    start(generation);
    while (!gone()) {
      wait_for_something();
      handle_signals();
      keep_deadline();
      sweep();
    }
    finish_generation();
    if (stop_signal_ != 0 && first_failed_ < 0) {
      // Asked to end: a rank that failed for a reason of its own is a failure all the same, unless
      // others had to be ended by signals, and it noticed.
      const auto by_signal = [&](const Rank& rank) { return rank.code() > 128; };
      const auto failed = std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
        return rank.failed() && rank.code() != static_cast<int>(ExitCode::interrupted);
      });
      if (failed != ranks_.end() && std::none_of(ranks_.begin(), ranks_.end(), by_signal)) {
        first_failed_ = failed->number;
      }
    }
    if (first_failed_ < 0) break;
    const double grace = std::chrono::duration<double>(options_.shutdown_timeout).count();
    console_.say(failure_report(ranks_, {first_failed_, grace}));
    if (generation == options_.max_restarts || stop_signal_ != 0) break;
    console_.say(concat("bellows launch: all ranks are started anew (restart ", generation + 1,
                        " of ", options_.max_restarts, ")\n"));
  }
  if (first_failed_ < 0 && exit_code() > 128) {
    console_.say(concat("bellows launch: ended by ", signal_name(stop_signal_),
                        "; not every rank saved its state\n"));
  }
  finish_output();
  return exit_code();
}

}  // namespace

int launch(const Options& options, int out, int err) {
  if (options.program.empty()) throw ValueError("no program to launch");
  if (options.ranks < 1)
    throw ValueError(concat("got ", options.ranks, " ranks, expected 1 or more"));
  open_standard_streams();
  Options complete = options;
  complete.redirects.resize(static_cast<size_t>(options.ranks));
  complete.tee.resize(static_cast<size_t>(options.ranks));
  return Launcher(complete, out, err).run();
}

}  // namespace bellows::launch
