#include "bellows/launch/child.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sched.h>
#include <sstream>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "bellows/core/agent_protocol.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::launch {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const char* what) {
  const int code = errno;
  const char* next = "";
  if (code == EMFILE || code == ENFILE) {
    next = "; each rank needs up to five descriptors: raise the limit (ulimit -n) or start fewer";
  } else if (code == EAGAIN) {
    next = "; the limit of processes is reached (ulimit -u)";
  }
  throw EnvironmentError(concat(what, ": ", std::strerror(code), next));
}

struct Ends {
  Descriptor ours, theirs;
};

Ends open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("a pipe for a rank's output cannot be opened");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Ends open_channel() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    fail("a socket of the agent channel cannot be opened");
  }
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::string channel_variable(int fd, const std::string& secret) {
  struct stat status {};
  ::fstat(fd, &status);
  return concat(agent::kVersion, ":", fd, ":", status.st_ino, ":", secret);
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (auto& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

std::vector<unsigned long> bits_of(const std::vector<int>& cpus) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> bits;
  for (const int cpu : cpus) {
    const auto number = static_cast<size_t>(cpu);
    if (bits.size() <= number / kBits) bits.resize(number / kBits + 1);
    bits[number / kBits] |= 1UL << (number % kBits);
  }
  return bits;
}

/// What is needed between fork and exec, made before: nothing may be allocated there.
struct Plan {
  const char* program;
  char* const* words;
  char* const* environment;
  int out, err, agent, inherited, failure;
  unsigned long files;
  const std::vector<unsigned long>& cpus;  // a bit each, as the kernel has them
  pid_t launcher;
  const Guard& guard;
  const SignalQueue& signals;
};

[[noreturn]] void become(const Plan& plan) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.launcher) _exit(1);  // it died before that
  ::setpgid(0, 0);
  plan.guard.watch(::getpid());
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(null, STDIN_FILENO);
  ::dup2(plan.out, STDOUT_FILENO);
  ::dup2(plan.err, STDERR_FILENO);
  ::fcntl(plan.agent, F_SETFD, 0);
  if (plan.inherited >= 0) ::fcntl(plan.inherited, F_SETFD, 0);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = plan.files;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (!plan.cpus.empty()) {
    ::sched_setaffinity(0, plan.cpus.size() * sizeof(unsigned long),
                        reinterpret_cast<const cpu_set_t*>(plan.cpus.data()));
  }
  plan.signals.restore();
  ::execve(plan.program, plan.words, plan.environment);
  const int code = errno;
  if (::write(plan.failure, &code, sizeof(code)) < 0) _exit(126);
  _exit(127);
}

std::string reason_of(const std::string& program, int code) {
  if (code == ENOEXEC) {
    return program +
           " is no program: if it is a script, let its first line name the interpreter "
           "(#!/bin/sh), or name that before it";
  }
  if (code == E2BIG) return program + ": its arguments and environment are too long";
  return program + " cannot be executed: " + std::strerror(code);
}

}  // namespace

std::string find_program(const std::string& name) {
  std::error_code ignored;
  const auto runs = [&](const fs::path& path) {
    return fs::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) {
    if (!fs::exists(name, ignored)) throw ValueError(name + " does not exist; expected a program");
    if (fs::is_directory(name, ignored))
      throw ValueError(name + " is a folder; expected a program");
    if (!runs(name)) {
      throw ValueError(name +
                       " is not executable: chmod +x it, or name its interpreter first, as in "
                       "`bellows launch -- python " +
                       name + "`");
    }
    return name;
  }
  const char* variable = std::getenv("PATH");
  std::istringstream folders(variable == nullptr ? "/usr/bin:/bin" : variable);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path path = fs::path(folder.empty() ? "." : folder) / name;
    if (!name.empty() && runs(path)) return path.string();
  }
  throw ValueError("no program '" + name + "' in PATH" +
                   (fs::exists(name, ignored) ? "; the one in this folder is ./" + name : ""));
}

Child start_child(const std::string& program, ChildRequest request, const Guard& guard,
                  const SignalQueue& signals) {
  Ends out = open_pipe(), err = open_pipe(), agent = open_channel(), failure = open_pipe();
  request.environment[agent::kVariable] = channel_variable(agent.theirs.get(), request.secret);
  std::vector<std::string> entries;
  for (const auto& [name, value] : request.environment) entries.push_back(name + "=" + value);
  const std::vector<char*> words = pointers(request.words), environment = pointers(entries);
  const std::vector<unsigned long> cpus = bits_of(request.cpus);
  const Plan plan{program.c_str(),
                  words.data(),
                  environment.data(),
                  out.theirs.get(),
                  err.theirs.get(),
                  agent.theirs.get(),
                  request.inherited,
                  failure.theirs.get(),
                  request.files,
                  cpus,
                  ::getpid(),
                  guard,
                  signals};
  const pid_t pid = ::fork();
  if (pid < 0) fail("a rank cannot be started");
  if (pid == 0) become(plan);
  ::setpgid(pid, pid);
  failure.theirs.close();
  ::fcntl(failure.ours.get(), F_SETFL, 0);
  int code = 0;
  ssize_t count = 0;
  do {  // until the program has taken over
    count = ::read(failure.ours.get(), &code, sizeof(code));
  } while (count < 0 && errno == EINTR);
  if (count == sizeof(code)) {
    ::waitpid(pid, nullptr, 0);
    guard.forget(pid);
    throw ValueError(reason_of(program, code));
  }
  return {pid, std::move(out.ours), std::move(err.ours), std::move(agent.ours)};
}

}  // namespace bellows::launch
