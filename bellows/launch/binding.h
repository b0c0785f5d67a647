// Which CPUs each rank may run on.
#pragma once

#include <string>
#include <vector>

#include "bellows/launch/launch.h"

namespace bellows::launch {

/// One logical CPU. Two CPUs are of the same core, last-level cache, NUMA node or package where
/// those numbers are equal; `number` and `node` are the kernel's.
struct Cpu {
  int number = 0, core = 0, cache = 0, node = 0, package = 0;
};

/// The CPUs of this machine, or of hwloc's synthetic description, or of an XML file; as hwloc sees
/// them, which is opened at run time. Throws EnvironmentError where hwloc is not there, ValueError
/// for a description that it does not take.
std::vector<Cpu> machine_cpus();
std::vector<Cpu> synthetic_cpus(const std::string& description);
std::vector<Cpu> xml_cpus(const std::string& file);

/// CPU numbers for each entry of `nodes`, the NUMA nodes of the devices; the rules are torchrun's:
/// node: all of the node; socket: all of its package; exclusive: whole cores of the node, shared
/// out evenly, the first devices getting one more; core_complex: those of one last-level cache of
/// the node, caches with more CPUs first, taken by turns. core: as exclusive, over all of `cpus`.
/// Throws EnvironmentError where one would get none.
std::vector<std::vector<int>> divide_cpus(const std::vector<Cpu>& cpus, Binding binding,
                                          const std::vector<int>& nodes);

/// One entry a rank of this node: rank r is near CUDA device r, on a machine without devices ranks
/// are spread over the NUMA nodes evenly. Only CPUs that this process may use. Empty without
/// binding.
std::vector<std::vector<int>> cpus_of_ranks(const Options& options);

/// "0-3,8".
std::string cpu_list(const std::vector<int>& cpus);

}  // namespace bellows::launch
