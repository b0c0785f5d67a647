#include "bellows/parallel/spawn.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <iostream>
#include <map>
#include <sstream>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "bellows/core/agent_client.h"
#include "bellows/core/text.h"
#include "bellows/launch/descriptor.h"
#include "bellows/launch/launch.h"

namespace bellows::parallel {
namespace {

// "launch:RANKS:NAME" in the process that looks after the ranks, "run:NAME" in them.
constexpr const char* kVariable = "BELLOWS_SPAWN";
constexpr const char* kSelf = "/proc/self/exe";

std::map<std::string, Entry>& entries() {
  static std::map<std::string, Entry> all;
  return all;
}

std::atomic<bool> entered{false};

/// The launcher: one process with one thread, which starts the ranks and looks after them.

[[noreturn]] void look_after(const std::string& request, int argc, char** argv) {
  const size_t colon = request.find(':');
  const std::string run = "run:" + request.substr(colon + 1);
  ::setenv(kVariable, run.c_str(), 1);
  launch::Options options;
  options.ranks = std::atoi(request.substr(0, colon).c_str());
  options.program = {std::getenv("BELLOWS_SPAWN_PROGRAM")};
  options.program.insert(options.program.end(), argv + 1, argv + argc);
  options.shutdown_timeout = std::chrono::seconds(5);
  int code = 3;
  try {
    code = launch::launch(options, 1, 2);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
  }
  _exit(code);
}

[[noreturn]] void run_rank(const std::string& name, int argc, char** argv) {
  agent::connect();
  int code = 1;
  try {
    const auto found = entries().find(name);
    if (found == entries().end()) throw ValueError("no function '" + name + "' is registered");
    code = found->second({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    agent::exception(error.what());
    std::cerr << error.what() << std::endl;
  }
  std::exit(code);
}

std::string program_path() {
  char path[4096];
  const ssize_t size = ::readlink(kSelf, path, sizeof(path));
  if (size <= 0 || size == sizeof(path)) {
    throw EnvironmentError("the path of this program cannot be read (/proc is needed)");
  }
  return {path, static_cast<size_t>(size)};
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (auto& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& added) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!added.contains(text.substr(0, text.find('=')))) entries.push_back(text);
  }
  for (const auto& [name, value] : added) entries.push_back(name + "=" + value);
  return entries;
}

/// Reads a stream of the launcher to its end and passes it on; what it was.
std::string pass_on(int from, int to) {
  std::string all;
  char buffer[4096];
  for (;;) {
    const ssize_t count = ::read(from, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return all;
    all.append(buffer, static_cast<size_t>(count));
    if (all.size() > 1 << 20) all.erase(0, all.size() - (1 << 19));
    for (ssize_t at = 0; at < count;) {
      const ssize_t written = ::write(to, buffer + at, static_cast<size_t>(count - at));
      if (written < 0 && errno != EINTR) break;
      if (written > 0) at += written;
    }
  }
}

/// What of the launcher's standard error is its report: lines without a rank before them, from the
/// one that names who failed.
std::string report_in(const std::string& text) {
  std::string report;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("[rank ")) report += line + "\n";
  }
  const size_t first = report.find(" failed first");
  if (first != std::string::npos) {
    const size_t line = report.rfind('\n', first);
    report.erase(0, line == std::string::npos ? 0 : line + 1);
  }
  while (!report.empty() && report.back() == '\n') report.pop_back();
  return report;
}

}  // namespace

bool register_entry(const std::string& name, Entry entry) {
  if (!entries().emplace(name, std::move(entry)).second) {
    throw ValueError("a function for spawn: the name '" + name + "' is taken");
  }
  return true;
}

void spawn_entry(int argc, char** argv) {
  entered = true;
  const char* variable = std::getenv(kVariable);
  if (variable == nullptr) return;
  const std::string request = variable;
  const size_t colon = request.find(':');
  const std::string kind = request.substr(0, colon);
  if (kind == "launch") look_after(request.substr(colon + 1), argc, argv);
  ::unsetenv("BELLOWS_SPAWN_PROGRAM");
  ::unsetenv(kVariable);  // what the rank starts is no rank
  if (kind == "run") run_rank(request.substr(colon + 1), argc, argv);
}

void spawn(int ranks, const std::string& name, const std::vector<std::string>& arguments) {
  if (ranks < 1) throw ValueError(concat("spawn: got ", ranks, " ranks, expected at least 1"));
  if (!entries().contains(name)) {
    std::vector<std::string> names;
    for (const auto& [known, entry] : entries()) names.push_back(known);
    throw ValueError(
        concat("spawn: no function '", name, "' is registered; there are: ", join(names)));
  }
  if (!entered) {
    throw EnvironmentError(
        "spawn: this program's main does not call bellows::parallel::spawn_entry(argc, argv) "
        "first, "
        "and would start itself without end");
  }
  const std::string program = program_path();
  std::vector<std::string> words = arguments;
  words.insert(words.begin(), program);
  auto entries = environment_with(
      {{kVariable, concat("launch:", ranks, ":", name)}, {"BELLOWS_SPAWN_PROGRAM", program}});
  const auto argv = pointers(words), envp = pointers(entries);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw EnvironmentError(concat("spawn: a pipe cannot be opened: ", std::strerror(errno)));
  }
  launch::Descriptor ours(ends[0]), theirs(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0)
    throw EnvironmentError(concat("spawn: cannot start a process: ", std::strerror(errno)));
  if (pid == 0) {  // only what may be called between fork and exec
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) _exit(1);
    ::dup2(theirs.get(), STDERR_FILENO);
    ::execve(program.c_str(), argv.data(), envp.data());
    _exit(127);
  }
  theirs.close();
  const std::string text = pass_on(ours.get(), STDERR_FILENO);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (code == 0) return;
  const std::string report = report_in(text);
  throw SpawnError(report.empty() ? concat("spawn: the ranks ended with ", code) : report, code);
}

}  // namespace bellows::parallel
