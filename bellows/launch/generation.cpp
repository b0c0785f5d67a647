#include "bellows/launch/generation.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "bellows/core/clock.h"
#include "bellows/launch/environment.h"

namespace bellows::launch {
namespace {

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
  return text;
}

std::string prefix_of(const Options& options, int rank, int local) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::string text = replaced(options.line_prefix, "${rank}", std::to_string(rank));
  text = replaced(text, "${local_rank}", std::to_string(local));
  text = replaced(text, "${role_name}", options.role);
  return replaced(text, "${hostname}", host.data());
}

}  // namespace

Generation::Generation(const Job& job, Assignment node) : job_(job), node_(std::move(node)) {
  if (!node_.master && node_.first_rank == 0) {
    node_.master = std::make_shared<MasterSocket>(node_.master_address, node_.master_port);
  }
  if (node_.master) node_.master_port = node_.master->port();
  try {
    for (int local = 0; local < job.options.ranks; ++local) ranks_.push_back(start_rank(local));
  } catch (...) {
    while (!gone()) {
      signal(SIGKILL);
      ::poll(nullptr, 0, 1);
      reap();
    }
    throw;
  }
}

Rank Generation::start_rank(int local) {
  const Options& options = job_.options;
  const int number = node_.first_rank + local;
  ChildRequest request;
  request.words = options.program;
  request.environment =
      rank_environment(options, {node_, local, node_.master_port, job_.run_id, job_.threads});
  request.secret = job_.secret;
  request.files = job_.files;
  if (!job_.cpus.empty()) request.cpus = job_.cpus.at(static_cast<size_t>(local));
  if (number == 0) {
    request.inherited = node_.master->fd();
    request.environment["BELLOWS_MASTER_FD"] = std::to_string(node_.master->fd());
  }
  Rank rank;
  rank.number = number;
  rank.local = local;
  for (const Streams stream : {kOut, kErr}) {
    RankOutput& output = stream == kOut ? rank.out : rank.err;
    const bool redirected = (options.redirects.at(static_cast<size_t>(local)) & stream) != 0;
    output.lines = LineStream(prefix_of(options, number, local));
    output.shown =
        !redirected && (options.shown_ranks.empty() || options.shown_ranks.contains(local));
    output.file = job_.logs.open(node_.generation, local, stream);
    output.file_path = job_.logs.file_of(node_.generation, local, stream);
  }
  rank.started = monotonic_clock().now();
  rank.child = start_child(job_.program, std::move(request), job_.guard, job_.signals);
  rank.out.pipe = std::move(rank.child.out);
  rank.err.pipe = std::move(rank.child.err);
  rank.agent = AgentPeer(std::move(rank.child.agent), number, job_.secret);
  return rank;
}

bool Generation::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running(); });
}

/// Children besides the ranks and the guard: what ranks have started and left behind comes to the
/// launcher, their subreaper.
std::vector<pid_t> Generation::strays() const {
  std::vector<pid_t> found;
  std::ifstream file("/proc/self/task/" + std::to_string(::getpid()) + "/children");
  for (pid_t pid = 0; file >> pid;) {
    const bool known =
        pid == job_.guard.pid() || std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
          return rank.running() && rank.child.pid == pid;
        });
    if (!known) found.push_back(pid);
  }
  return found;
}

bool Generation::gone() const {
  return !any_running() && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.group_gone;
  }) && strays().empty();
}

std::vector<Rank*> Generation::reap() {
  std::vector<Rank*> ended;
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    for (auto& rank : ranks_) {
      if (!rank.running() || rank.child.pid != pid) continue;
      rank.status = status;
      rank.ended = monotonic_clock().now();
      rank.agent.drain_all();
      if (rank.number == 0) node_.master->close();
      ended.push_back(&rank);
    }
  }
  forget_empty_groups();
  return ended;
}

void Generation::forget_empty_groups() {
  for (auto& rank : ranks_) {
    if (rank.running() || rank.group_gone) continue;
    rank.look_at_group();
    if (rank.group_gone) job_.guard.forget(rank.child.pid);
  }
}

void Generation::ask_strays() {
  for (const pid_t pid : strays()) {
    if (asked_.insert(pid).second) ::kill(pid, SIGTERM);
  }
}

void Generation::signal(int number, const Rank* spared) {
  for (auto& rank : ranks_) {
    if (&rank != spared) rank.signal(number);
  }
  for (const pid_t pid : strays()) ::kill(pid, number);
}

}  // namespace bellows::launch
