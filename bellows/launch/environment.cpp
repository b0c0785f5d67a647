#include "bellows/launch/environment.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <thread>
#include <unistd.h>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::launch {
namespace {

int cores_of_affinity() {
  for (int size = 1024; size <= 1 << 16; size *= 2) {
    cpu_set_t* set = CPU_ALLOC(size);
    const size_t bytes = CPU_ALLOC_SIZE(size);
    const int count = ::sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

/// The tightest quota of this process's control group (version 2) and those above it.
int cores_of_quota(int most) {
  std::ifstream own("/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(own, line);) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  double cores = most;
  for (;; path = path.substr(0, path.rfind('/'))) {
    std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
    double quota = 0, period = 0;
    if (file >> quota >> period && period > 0) cores = std::min(cores, quota / period);
    if (path.empty() || path == "/" || path.find('/') == std::string::npos) break;
  }
  return std::max(1, static_cast<int>(std::ceil(cores)));
}

std::string device_of(int rank) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return std::to_string(rank);
  std::vector<std::string> devices;
  std::istringstream words(visible);
  for (std::string word; std::getline(words, word, ',');) devices.push_back(word);
  if (rank >= std::ssize(devices)) {
    throw ValueError(concat("--virtual-local-rank: rank ", rank,
                            " has no device: CUDA_VISIBLE_DEVICES names ", devices.size(), " ('",
                            visible, "'); start fewer ranks or name more"));
  }
  return devices[static_cast<size_t>(rank)];
}

}  // namespace

int usable_cores() {
  return cores_of_quota(cores_of_affinity());
}

std::string threads_per_rank(int cores, int ranks) {
  if (ranks < 2 || std::getenv("OMP_NUM_THREADS") != nullptr) return "";
  return std::to_string(std::max(1, cores / ranks));
}

std::map<std::string, std::string> rank_environment(const Options& options,
                                                    const Placement& placement) {
  std::map<std::string, std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=', 1);
    if (equals != std::string::npos) all[text.substr(0, equals)] = text.substr(equals + 1);
  }
  const Assignment& node = placement.node;
  const std::string local = std::to_string(placement.local_rank);
  const std::string rank = std::to_string(node.first_rank + placement.local_rank);
  const std::string world = std::to_string(node.world_size);
  const std::map<std::string, std::string> ours = {
      {"RANK", rank},
      {"LOCAL_RANK", options.virtual_local_rank ? "0" : local},
      {"GROUP_RANK", std::to_string(node.node)},
      {"ROLE_RANK", rank},
      {"ROLE_NAME", options.role},
      {"WORLD_SIZE", world},
      {"LOCAL_WORLD_SIZE", std::to_string(options.ranks)},
      {"GROUP_WORLD_SIZE", std::to_string(node.nodes)},
      {"ROLE_WORLD_SIZE", world},
      {"MASTER_ADDR", node.master_address},
      {"MASTER_PORT", std::to_string(placement.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(node.restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)},
      {"TORCHELASTIC_RUN_ID", placement.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
  };
  for (const auto& [name, value] : ours) all[name] = value;
  all.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  for (const auto& [name, value] : node.variables) all.emplace(name, value);
  all.emplace("PYTHONUNBUFFERED", "1");  // its lines are seen when they are written
  if (!placement.threads.empty()) all["OMP_NUM_THREADS"] = placement.threads;
  if (options.virtual_local_rank) all["CUDA_VISIBLE_DEVICES"] = device_of(placement.local_rank);
  // A launcher below another launcher has its own.
  all.erase("BELLOWS_AGENT");
  all.erase("BELLOWS_MASTER_FD");
  return all;
}

}  // namespace bellows::launch
