// hwloc, opened when it is asked for: one that does not bind does not need it.
#include <dlfcn.h>
#include <hwloc.h>
#include <memory>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/launch/binding.h"

namespace bellows::launch {
namespace {

constexpr const char* kLibrary = "libhwloc.so.15";  // of hwloc 2

/// Its functions that are used here.
struct Hwloc {
  decltype(&hwloc_topology_init) init;
  decltype(&hwloc_topology_load) load;
  decltype(&hwloc_topology_destroy) destroy;
  decltype(&hwloc_topology_set_synthetic) set_synthetic;
  decltype(&hwloc_topology_set_xml) set_xml;
  decltype(&hwloc_get_type_depth) depth;
  decltype(&hwloc_get_nbobjs_by_depth) count;
  decltype(&hwloc_get_obj_by_depth) object;
  decltype(&hwloc_bitmap_isset) has;
};

Hwloc open_hwloc() {
  void* handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw EnvironmentError(concat("binding to CPUs needs hwloc: ", ::dlerror(),
                                  "; apt-get install libhwloc15, or leave out --numa-binding and "
                                  "--bind-to"));
  }
  const auto take = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (function == nullptr) throw EnvironmentError(concat(kLibrary, " has no ", name));
  };
  Hwloc all{};
  take(all.init, "hwloc_topology_init");
  take(all.load, "hwloc_topology_load");
  take(all.destroy, "hwloc_topology_destroy");
  take(all.set_synthetic, "hwloc_topology_set_synthetic");
  take(all.set_xml, "hwloc_topology_set_xml");
  take(all.depth, "hwloc_get_type_depth");
  take(all.count, "hwloc_get_nbobjs_by_depth");
  take(all.object, "hwloc_get_obj_by_depth");
  take(all.has, "hwloc_bitmap_isset");
  return all;
}

const Hwloc& hwloc() {
  static const Hwloc functions = open_hwloc();
  return functions;
}

using Topology = std::unique_ptr<hwloc_topology, decltype(Hwloc::destroy)>;

Topology new_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc().init(&topology) != 0) throw EnvironmentError("hwloc cannot be initialised");
  return {topology, hwloc().destroy};
}

/// The ancestor of that type, or null.
hwloc_obj_t above(hwloc_obj_t object, hwloc_obj_type_t type) {
  while (object != nullptr && object->type != type) object = object->parent;
  return object;
}

/// Of the caches above, the one furthest out that holds data.
hwloc_obj_t last_cache(hwloc_obj_t object) {
  hwloc_obj_t found = nullptr;
  for (; object != nullptr; object = object->parent) {
    if (object->type >= HWLOC_OBJ_L1CACHE && object->type <= HWLOC_OBJ_L5CACHE) found = object;
  }
  return found;
}

/// The number of the NUMA node that the CPU is next to; 0 where the machine names none.
int node_of(const Topology& topology, unsigned cpu) {
  for (unsigned i = 0; i < hwloc().count(topology.get(), HWLOC_TYPE_DEPTH_NUMANODE); ++i) {
    hwloc_obj_t node = hwloc().object(topology.get(), HWLOC_TYPE_DEPTH_NUMANODE, i);
    if (hwloc().has(node->cpuset, cpu) != 0) return static_cast<int>(node->os_index);
  }
  return 0;
}

int index_of(hwloc_obj_t object, unsigned otherwise) {
  return static_cast<int>(object == nullptr ? otherwise : object->logical_index);
}

std::vector<Cpu> load(const Topology& topology) {
  if (hwloc().load(topology.get()) != 0) throw EnvironmentError("hwloc finds no processors");
  const int depth = hwloc().depth(topology.get(), HWLOC_OBJ_PU);
  std::vector<Cpu> cpus;
  for (unsigned i = 0; i < hwloc().count(topology.get(), depth); ++i) {
    hwloc_obj_t unit = hwloc().object(topology.get(), depth, i);
    Cpu cpu;
    cpu.number = static_cast<int>(unit->os_index);
    cpu.core = index_of(above(unit, HWLOC_OBJ_CORE), i);
    cpu.cache = index_of(last_cache(unit), i);
    cpu.package = index_of(above(unit, HWLOC_OBJ_PACKAGE), 0);
    cpu.node = node_of(topology, unit->os_index);
    cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

std::vector<Cpu> machine_cpus() {
  return load(new_topology());
}

std::vector<Cpu> synthetic_cpus(const std::string& description) {
  const Topology topology = new_topology();
  if (hwloc().set_synthetic(topology.get(), description.c_str()) != 0) {
    throw ValueError("hwloc does not take the description '" + description + "'");
  }
  return load(topology);
}

std::vector<Cpu> xml_cpus(const std::string& file) {
  const Topology topology = new_topology();
  if (hwloc().set_xml(topology.get(), file.c_str()) != 0) {
    throw ValueError("hwloc does not take the file " + file);
  }
  return load(topology);
}

}  // namespace bellows::launch
