#include "bellows/launch/report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <sys/wait.h>

#include "bellows/core/text.h"

namespace bellows::launch {
namespace {

constexpr int kLastLines = 20;
constexpr const char* kMargin = "    | ";

std::string likely_cause(int signal) {
  switch (signal) {
    case SIGKILL:
      return "possibly out of memory: the kernel's log (dmesg) or the limit of the container "
             "tells; "
             "or somebody killed it";
    case SIGSEGV:
      return "it touched memory that is not its own";
    case SIGBUS:
      return "often a mapped file that was cut short, or a full /dev/shm";
    case SIGABRT:
      return "it gave up: an exception nobody caught, or a failed assertion";
    case SIGILL:
      return "an instruction that this processor does not have";
    case SIGFPE:
      return "a whole number divided by zero";
    case SIGXCPU:
      return "its limit of processor time was reached";
    case SIGXFSZ:
      return "its limit of file size was reached";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return "sent by somebody other than the launcher";
    default:
      return "";
  }
}

std::string seconds_text(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", seconds);
  return text.data();
}

std::string indented(const std::string& text) {
  std::string result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    result += kMargin;
    for (const char c : text.substr(begin, end - begin)) {
      result += static_cast<unsigned char>(c) < 0x20 && c != '\t' ? ' ' : c;
    }
    result += '\n';
    begin = end + 1;
  }
  return result;
}

std::string last_words(const Rank& rank) {
  std::string text;
  if (!rank.agent.exception().empty()) {
    text += "  exception:\n" + indented(rank.agent.exception());
  }
  const bool silent = rank.err.tail.empty();
  const Tail& tail = silent ? rank.out.tail : rank.err.tail;
  if (tail.empty()) {
    text += "  it wrote nothing\n";
  } else {
    text += concat("  last lines of its standard ", silent ? "output" : "error", ":\n");
    text += tail.lines(kLastLines, kMargin);
  }
  for (const auto* path : {&rank.err.file_path, &rank.out.file_path}) {
    if (!path->empty()) text += "  log: " + path->string() + "\n";
  }
  return text;
}

std::string fate(const Rank& rank, double grace_seconds) {
  if (rank.running()) return "still running";
  if (rank.sent == SIGKILL) {
    return concat("stopped by the launcher (SIGKILL, as it had not ended ",
                  seconds_text(grace_seconds), " after SIGTERM)");
  }
  if (rank.sent != 0) {
    std::string text = concat("stopped by the launcher (", signal_name(rank.sent), ")");
    if (!rank.ended_by(rank.sent)) text += concat(", ", how_it_ended(rank));
    return text;
  }
  return how_it_ended(rank);
}

/// R, S, D, T, Z: as the kernel has it.
char process_state(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name = text.rfind(')');
  return name == std::string::npos || name + 2 >= text.size() ? '?' : text[name + 2];
}

}  // namespace

std::string how_it_ended(const Rank& rank) {
  if (!rank.status) return "running";
  if (WIFSIGNALED(*rank.status)) {
    const int signal = WTERMSIG(*rank.status);
    const std::string cause = rank.sent == signal ? "" : likely_cause(signal);
    return signal_name(signal) + (cause.empty() ? "" : " (" + cause + ")");
  }
  const int code = rank.code();
  std::string text = concat("exit code ", code);
  if (code > 128 && code < 128 + 32) {
    text += concat(" (as shells report ", signal_name(code - 128), " of a program they started)");
  }
  return text;
}

std::string failure_report(const std::deque<Rank>& ranks, const Ending& ending) {
  const Rank& first = *std::find_if(ranks.begin(), ranks.end(),
                                    [&](const Rank& rank) { return rank.number == ending.first; });
  std::string text = concat(
      "bellows launch: rank ", first.number, " failed first: ", how_it_ended(first), ", after ",
      seconds_text(first.seconds()), ", pid ", first.child.pid, "\n", last_words(first));
  for (const auto& rank : ranks) {
    if (rank.number == first.number) continue;
    text += concat("  rank ", rank.number, ": ", fate(rank, ending.grace_seconds), "\n");
    if (rank.failed() && rank.sent == 0 && !rank.agent.exception().empty()) {
      text += indented(rank.agent.exception());
    }
  }
  return text;
}

std::string state_report(const std::deque<Rank>& ranks) {
  std::string text = "bellows launch: what the ranks are doing\n";
  for (const auto& rank : ranks) {
    text += concat("  rank ", rank.number, ", pid ", rank.child.pid, ": ");
    if (!rank.running()) {
      text += concat("ended, ", how_it_ended(rank), ", after ", seconds_text(rank.seconds()), "\n");
      continue;
    }
    const char state = process_state(rank.child.pid);
    if (state == 'T') text += "STOPPED (SIGSTOP); ";
    if (state == 'D') text += "waiting in the kernel; ";
    text += rank.agent.describe() + "\n";
  }
  return text;
}

}  // namespace bellows::launch
