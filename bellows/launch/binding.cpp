#include "bellows/launch/binding.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <sched.h>
#include <set>

#include "bellows/core/cuda_driver.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::launch {
namespace {

using Numbers = std::vector<int>;

Numbers numbers_where(const std::vector<Cpu>& cpus, int Cpu::*key, int value) {
  Numbers found;
  for (const Cpu& cpu : cpus) {
    if (cpu.*key == value) found.push_back(cpu.number);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<Cpu> of_node(const std::vector<Cpu>& cpus, int node) {
  std::vector<Cpu> found;
  std::copy_if(cpus.begin(), cpus.end(), std::back_inserter(found),
               [&](const Cpu& cpu) { return cpu.node == node; });
  return found;
}

/// CPUs that share a core or a cache, each group sorted, the groups by their first CPU.
std::vector<Numbers> groups_by(const std::vector<Cpu>& cpus, int Cpu::*key) {
  std::map<int, Numbers> by_key;
  for (const Cpu& cpu : cpus) by_key[cpu.*key].push_back(cpu.number);
  std::vector<Numbers> groups;
  for (auto& [value, numbers] : by_key) {
    std::sort(numbers.begin(), numbers.end());
    groups.push_back(std::move(numbers));
  }
  std::sort(groups.begin(), groups.end());
  return groups;
}

/// The `index`th of `shares` parts of all cores; the first ones have one more.
Numbers share_of_cores(const std::vector<Cpu>& cpus, size_t index, size_t shares,
                       const std::string& where) {
  const auto cores = groups_by(cpus, &Cpu::core);
  if (cores.size() < shares) {
    throw EnvironmentError(concat("each rank would get cores of its own: ", where, " has ",
                                  cores.size(), " usable, expected at least ", shares,
                                  "; start fewer ranks, or bind them otherwise"));
  }
  const size_t each = cores.size() / shares, more = cores.size() % shares;
  const size_t begin = index * each + std::min(index, more);
  const size_t end = begin + each + (index < more ? 1 : 0);
  Numbers numbers;
  for (size_t i = begin; i < end; ++i) {
    numbers.insert(numbers.end(), cores[i].begin(), cores[i].end());
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Numbers cache_of(const std::vector<Cpu>& cpus, size_t index) {
  auto caches = groups_by(cpus, &Cpu::cache);
  std::stable_sort(caches.begin(), caches.end(),
                   [](const Numbers& a, const Numbers& b) { return a.size() > b.size(); });
  return caches[index % caches.size()];
}

Numbers near_node(const std::vector<Cpu>& cpus, Binding binding, const std::vector<int>& nodes,
                  size_t device) {
  const int node = nodes[device];
  const auto own = of_node(cpus, node);
  const std::string where = concat("NUMA node ", node);
  if (own.empty()) {
    throw EnvironmentError(concat(where, " of rank ", device,
                                  "'s device has no CPU that this process may use; leave out "
                                  "--numa-binding"));
  }
  const auto before = static_cast<size_t>(
      std::count(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(device), node));
  const auto devices = static_cast<size_t>(std::count(nodes.begin(), nodes.end(), node));
  switch (binding) {
    case Binding::node:
      return numbers_where(own, &Cpu::node, node);
    case Binding::socket:
      return numbers_where(cpus, &Cpu::package, own.front().package);
    case Binding::exclusive:
      return share_of_cores(own, before, devices, where);
    default:
      return cache_of(own, before);
  }
}

/// CPUs that this process may use.
std::set<int> allowed_cpus() {
  constexpr int kMost = 1 << 16;
  std::vector<unsigned long> bits(kMost / (8 * sizeof(unsigned long)));
  auto* set = reinterpret_cast<cpu_set_t*>(bits.data());
  const size_t bytes = bits.size() * sizeof(unsigned long);
  if (::sched_getaffinity(0, bytes, set) != 0) {
    throw EnvironmentError("the kernel does not tell which CPUs this process may use");
  }
  std::set<int> cpus;
  for (int cpu = 0; cpu < kMost; ++cpu) {
    if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.insert(cpu);
  }
  return cpus;
}

/// Of each rank, the NUMA node of its device; without devices, one of the machine's by turns of
/// neighbours.
std::vector<int> nodes_of_ranks(const std::vector<Cpu>& cpus, int ranks) {
  std::set<int> with_cpus;
  for (const Cpu& cpu : cpus) with_cpus.insert(cpu.node);
  const std::vector<int> all(with_cpus.begin(), with_cpus.end());
  std::vector<int> of_devices;
  for (const auto& device : probe_cuda_driver().devices) {
    std::ifstream file("/sys/bus/pci/devices/" + device.pci_address + "/numa_node");
    int node = 0;
    file >> node;
    of_devices.push_back(std::max(node, 0));  // -1: the machine has one
  }
  const int count = std::max(ranks, static_cast<int>(of_devices.size()));
  std::vector<int> nodes;
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<size_t>(i);
    nodes.push_back(of_devices.empty() ? all[index * all.size() / static_cast<size_t>(count)]
                                       : of_devices[index % of_devices.size()]);
  }
  return nodes;
}

}  // namespace

std::vector<Numbers> divide_cpus(const std::vector<Cpu>& cpus, Binding binding,
                                 const std::vector<int>& nodes) {
  std::vector<Numbers> shares;
  for (size_t device = 0; device < nodes.size(); ++device) {
    shares.push_back(binding == Binding::core
                         ? share_of_cores(cpus, device, nodes.size(), "this machine")
                         : near_node(cpus, binding, nodes, device));
  }
  return shares;
}

std::vector<Numbers> cpus_of_ranks(const Options& options) {
  if (options.binding == Binding::none) return {};
  std::vector<Cpu> cpus = machine_cpus();
  const std::set<int> allowed = allowed_cpus();
  std::erase_if(cpus, [&](const Cpu& cpu) { return !allowed.contains(cpu.number); });
  const auto ranks = static_cast<size_t>(options.ranks);
  const auto nodes = options.binding == Binding::core ? std::vector<int>(ranks)
                                                      : nodes_of_ranks(cpus, options.ranks);
  auto shares = divide_cpus(cpus, options.binding, nodes);
  shares.resize(ranks);
  return shares;
}

std::string cpu_list(const Numbers& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += concat(text.empty() ? "" : ",", cpus[i]);
    if (last > i) text += concat("-", cpus[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace bellows::launch
