#include "bellows/parallel/place.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::parallel {
namespace {

constexpr const char* kLaunch = "`bellows launch --nproc-per-node 2 -- PROGRAM` sets it";

/// The variables of one launcher.
class Variables {
 public:
  Variables(const Lookup& lookup, const char* remedy) : lookup_(lookup), remedy_(remedy) {}

  std::optional<std::string> text(const std::string& name) const {
    auto value = lookup_(name);
    if (value && value->empty()) return std::nullopt;
    return value;
  }
  bool has(const std::string& name) const { return text(name).has_value(); }

  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    const auto value = text(name);
    throw ValueError(concat("the environment variable ", name, value ? "=" + *value : "", " ", what,
                            "; ", remedy_));
  }
  std::string needed(const std::string& name, const std::string& because) const {
    const auto value = text(name);
    if (!value) fail(name, "is not set, and " + because);
    return *value;
  }

  std::optional<int64_t> number(const std::string& name, int64_t low, int64_t high) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int64_t number = 0;
    const char* end = value->data() + value->size();
    const auto [rest, error] = std::from_chars(value->data(), end, number);
    if (error != std::errc() || rest != end) fail(name, "is no whole number");
    if (number < low || number > high) {
      fail(name, concat("is out of range: expected ", low, " to ", high));
    }
    return number;
  }
  int64_t needed_number(const std::string& name, const std::string& because, int64_t low,
                        int64_t high) const {
    const auto value = number(name, low, high);
    if (!value) fail(name, "is not set, and " + because);
    return *value;
  }

 private:
  const Lookup& lookup_;
  const char* remedy_;
};

constexpr int64_t kMost = 1 << 24;  // ranks

/// "<name> is set": why another variable must be.
std::string is_set(const std::string& name) {
  return name + " is";
}

/// Number of ranks, then this one's, by these names.
void read_ranks(const Variables& variables, const std::string& rank, const std::string& size,
                Place& place) {
  place.world_size = variables.needed_number(size, is_set(rank), 1, kMost);
  place.rank = variables.needed_number(rank, is_set(size), 0, kMost);
  if (place.rank >= place.world_size) {
    variables.fail(rank, concat("contradicts ", size, "=", place.world_size, ": expected 0 to ",
                                place.world_size - 1));
  }
}

void read_local(const Variables& variables, const std::string& rank, const std::string& size,
                Place& place) {
  const auto local_size = variables.number(size, 1, kMost);
  const auto local_rank = variables.number(rank, 0, kMost);
  if (local_size) place.local_world_size = *local_size;
  if (local_rank) place.local_rank = *local_rank;
  if (local_size && *local_size > place.world_size) {
    variables.fail(size, concat("contradicts the number of all ranks, ", place.world_size));
  }
  if (local_rank && local_size && *local_rank >= *local_size) {
    variables.fail(rank, concat("contradicts ", size, "=", *local_size));
  }
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

/// MASTER_ADDR and MASTER_PORT, which more than one rank needs.
void read_master(const Variables& variables, Place& place) {
  const auto address = variables.text("MASTER_ADDR");
  const auto port = variables.number("MASTER_PORT", 1, 65535);
  if (address) place.master_addr = *address;
  if (port) place.master_port = static_cast<int>(*port);
  if (place.world_size == 1) return;
  const std::string because = concat("the ", place.world_size, " ranks meet there");
  if (!address) variables.fail("MASTER_ADDR", "is not set, and " + because);
  if (!port) variables.fail("MASTER_PORT", "is not set, and " + because);
}

/// torchrun, `bellows launch`, and whoever sets the same variables.
Place of_torchrun(const Lookup& lookup) {
  const Variables variables(lookup, kLaunch);
  Place place;
  place.source = "torchrun";
  read_ranks(variables, "RANK", "WORLD_SIZE", place);
  read_master(variables, place);
  const bool pod = !variables.has("LOCAL_RANK") && variables.has("KUBERNETES_SERVICE_HOST");
  if (pod) {  // one rank in each
    place.source = "Kubernetes PyTorchJob";
    place.node_rank = place.rank;
    return place;
  }
  if (!variables.has("LOCAL_WORLD_SIZE") && is_loopback(place.master_addr)) {
    place.local_world_size = place.world_size;  // nobody else could reach rank 0
    place.local_rank = place.rank;
  }
  read_local(variables, "LOCAL_RANK", "LOCAL_WORLD_SIZE", place);
  place.node_rank = variables.number("GROUP_RANK", 0, kMost).value_or(0);
  place.restarts = variables.number("TORCHELASTIC_RESTART_COUNT", 0, kMost).value_or(0);
  return place;
}

/// Where MASTER_ADDR is not set: on one machine its loopback address.
void default_address(const Variables& variables, Place& place) {
  const auto address = variables.text("MASTER_ADDR");
  if (address) {
    place.master_addr = *address;
  } else if (place.local_world_size < place.world_size) {
    variables.fail("MASTER_ADDR", "is not set, and the ranks are on several machines");
  }
}

/// Where MASTER_PORT is not set: one that all ranks of the job come upon, and other jobs hardly.
void default_port(const Variables& variables, const std::optional<std::string>& job, Place& place) {
  const auto port = variables.number("MASTER_PORT", 1, 65535);
  if (port) {
    place.master_port = static_cast<int>(*port);
  } else if (job) {
    uint32_t hash = 2166136261;
    for (const char c : *job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
    place.master_port = static_cast<int>(20000 + hash % 12000);  // below what connections are given
  } else if (place.world_size > 1) {
    variables.fail("MASTER_PORT", "is not set, and the ranks meet there");
  }
}

/// The first of "gpu[03-05,9],login1": gpu03.
std::string first_host(const std::string& list) {
  const size_t bracket = list.find('[');
  const size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", bracket);
  const size_t close = list.find(']', bracket);
  if (end == std::string::npos || close == std::string::npos) return "";
  const size_t rest = list.find(',', close);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) +
         list.substr(close + 1, rest == std::string::npos ? rest : rest - close - 1);
}

/// How many tasks node `node` has by "2(x3),1"; 0 where the text is another.
int64_t tasks_on(const std::string& text, int64_t node) {
  size_t at = 0;
  while (at < text.size()) {
    int64_t tasks = 0, nodes = 1;
    const char* end = text.data() + text.size();
    auto [rest, error] = std::from_chars(text.data() + at, end, tasks);
    if (error != std::errc()) return 0;
    if (end - rest > 3 && rest[0] == '(' && rest[1] == 'x') {
      const auto [close, bad] = std::from_chars(rest + 2, end, nodes);
      if (bad != std::errc() || close == end || *close != ')') return 0;
      rest = close + 1;
    }
    if (node < nodes) return tasks;
    node -= nodes;
    at = static_cast<size_t>(rest - text.data()) + 1;  // the comma
  }
  return 0;
}

Place of_slurm(const Lookup& lookup) {
  const Variables variables(lookup, "`srun --ntasks 2 PROGRAM` sets it");
  Place place;
  place.source = "SLURM";
  const char* size =
      variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  read_ranks(variables, "SLURM_PROCID", size, place);
  if (place.world_size > 1 && !variables.has("SLURM_STEP_ID") && !variables.has("SLURM_STEPID")) {
    variables.fail(size, "asks for several ranks, and this is the batch script, not one of them");
  }
  place.node_rank = variables.number("SLURM_NODEID", 0, kMost).value_or(0);
  const char* layout = variables.has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE"
                                                                  : "SLURM_TASKS_PER_NODE";
  if (const auto text = variables.text(layout)) {
    const int64_t tasks = tasks_on(*text, place.node_rank);
    if (tasks < 1) variables.fail(layout, "does not tell how many ranks this machine has");
    place.local_world_size = tasks;
  }
  if (place.local_world_size > place.world_size) {
    variables.fail(layout, concat("contradicts ", size, "=", place.world_size));
  }
  place.local_rank = variables.number("SLURM_LOCALID", 0, kMost).value_or(0);
  if (place.local_rank >= place.local_world_size) {
    variables.fail("SLURM_LOCALID",
                   concat("contradicts ", place.local_world_size, " ranks on this machine"));
  }
  const char* nodes =
      variables.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_NODELIST";
  const auto list = variables.text(nodes);
  if (list && !variables.has("MASTER_ADDR") && place.local_world_size < place.world_size) {
    place.master_addr = first_host(*list);
    if (place.master_addr.empty()) variables.fail(nodes, "is no list of machines");
  } else {
    default_address(variables, place);
  }
  const std::string job = variables.text("SLURM_JOB_ID").value_or("") + "." +
                          variables.text("SLURM_STEP_ID").value_or("");
  default_port(variables, job, place);
  place.restarts = variables.number("SLURM_RESTART_COUNT", 0, kMost).value_or(0);
  return place;
}

Place of_open_mpi(const Lookup& lookup) {
  const Variables variables(
      lookup, "`mpirun -np 2 -x MASTER_ADDR=HOST -x MASTER_PORT=29500 PROGRAM` sets it");
  Place place;
  place.source = "Open MPI";
  read_ranks(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", place);
  read_local(variables, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", place);
  place.node_rank = place.rank / place.local_world_size;
  default_address(variables, place);
  auto job = variables.text("PMIX_NAMESPACE");
  if (!job) job = variables.text("OMPI_MCA_ess_base_jobid");
  default_port(variables, job, place);
  return place;
}

Place of_mpich(const Lookup& lookup) {
  const Variables variables(
      lookup, "`mpiexec -n 2 -genv MASTER_ADDR HOST -genv MASTER_PORT 29500 PROGRAM` sets it");
  Place place;
  place.source = "MPICH";
  read_ranks(variables, "PMI_RANK", "PMI_SIZE", place);
  read_local(variables, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", place);
  place.node_rank = place.rank / place.local_world_size;
  default_address(variables, place);
  default_port(variables, std::nullopt, place);
  return place;
}

}  // namespace

Place place_from(const Lookup& lookup) {
  const auto has = [&](const char* name) {
    const auto value = lookup(name);
    return value && !value->empty();
  };
  if (has("RANK") || has("WORLD_SIZE")) return of_torchrun(lookup);
  if (has("OMPI_COMM_WORLD_RANK") || has("OMPI_COMM_WORLD_SIZE")) return of_open_mpi(lookup);
  // Hydra starts its own daemons with srun, and srun --mpi sets the variables of PMI.
  if (has("PMI_RANK") && has("MPI_LOCALRANKID")) return of_mpich(lookup);
  if (has("SLURM_PROCID")) return of_slurm(lookup);
  if (has("PMI_RANK") || has("PMI_SIZE")) return of_mpich(lookup);
  return {};
}

Place place_from_environment() {
  return place_from([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  });
}

void check_devices(const Place& place, int64_t devices) {
  if (place.local_world_size <= devices) return;
  throw EnvironmentError(concat("this machine has ", place.local_world_size, " ranks and ", devices,
                                devices == 1 ? " CUDA device" : " CUDA devices",
                                ", and two ranks must not share one: start at most ", devices,
                                " (`bellows launch --nproc-per-node ",
                                std::max<int64_t>(devices, 1),
                                " -- PROGRAM`), or take the back-end gloo on the CPU"));
}

}  // namespace bellows::parallel
