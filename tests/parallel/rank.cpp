// A rank for tests of faults: parallel_rank TIMEOUT_MS SCENARIO ARGUMENTS… Prints `pid N` once its
// group stands, and at the end one line that tells what became of it.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include <ATen/ops/ones.h>

#include "bellows/core/error.h"
#include "bellows/device/init.h"
#include "bellows/parallel/call.h"
#include "bellows/parallel/group.h"
#include "bellows/parallel/init.h"

namespace {
using namespace bellows;
using namespace bellows::parallel;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

/// All-reduces for ever, or until `steps`.
void reduce(const Group& group, int64_t size, int64_t steps) {
  const at::Tensor tensor = at::ones({size});
  for (int64_t step = 0; step < steps; ++step) {
    const Describe what("bucket 0: fc.weight", 0);
    group.all_reduce(tensor, ReduceOp::max);
  }
}

int64_t number(char** argv, int i) {
  return std::atoll(argv[i]);
}

void act(const Group& group, int argc, char** argv) {
  const std::string scenario = argc > 2 ? argv[2] : "reduce";
  if (scenario == "reduce") return reduce(group, number(argv, 3), number(argv, 4));
  // sleep RANK SECONDS: instead of a collective.
  if (scenario == "sleep") {
    reduce(group, 10, 3);
    if (group.rank() == number(argv, 3))
      std::this_thread::sleep_for(std::chrono::seconds(number(argv, 4)));
    group.monitored_barrier(std::chrono::seconds(1));
  }
  // leave RANK: returns early.
  if (scenario == "leave") {
    reduce(group, 10, 3);
    if (group.rank() == number(argv, 3)) return;
    reduce(group, 10, 1 << 30);
  }
  // exit RANK: without closing anything.
  if (scenario == "exit") {
    reduce(group, 10, 3);
    if (group.rank() == number(argv, 3)) _exit(5);
    reduce(group, 10, 1 << 30);
  }
  // throw RANK
  if (scenario == "throw") {
    reduce(group, 10, 3);
    if (group.rank() == number(argv, 3)) throw ValueError("bad data row 12");
    reduce(group, 10, 1 << 30);
  }
  // differ: another shape on rank 1, after some steps.
  if (scenario == "differ") {
    reduce(group, 10, 3);
    reduce(group, group.rank() == 1 ? 11 : 12, 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  bellows::init();
  double started = 0, cpu = 0;
  try {
    const Group group = parallel::init({.timeout = std::chrono::milliseconds(std::atoll(argv[1]))});
    std::cout << "pid " << getpid() << std::endl;
    cpu = cpu_seconds();
    started = now();
    act(group, argc, argv);
    std::cout << "done" << std::endl;
  } catch (const RankError& error) {
    std::cout << "at " << now() << " cpu " << (cpu_seconds() - cpu) / (now() - started) << " ranks";
    for (const int64_t rank : error.ranks()) std::cout << " " << rank;
    std::cout << ": " << error.what() << std::endl;
    return 7;
  } catch (const std::exception& error) {
    std::cout << "error: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
