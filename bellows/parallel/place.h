// Where a process stands among the ranks of a job, as launchers tell it. Standard library only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace bellows::parallel {

struct Place {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
  int64_t node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  int64_t restarts = 0;
  /// Who told: "torchrun" (also `bellows launch`), "SLURM", "Open MPI", "MPICH", "Kubernetes
  /// PyTorchJob", or "nobody".
  std::string source = "nobody";
};

using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Reads torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
/// MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT); where there are none, those of srun,
/// mpirun and a PyTorchJob. One process without any is a group of one. Throws ValueError that names
/// the variable that is missing, is no number, or contradicts another, with its value and the
/// command that sets it.
Place place_from_environment();
/// The same for other variables than this process's.
Place place_from(const Lookup& lookup);

/// Throws EnvironmentError with both numbers where this machine has more ranks than CUDA devices.
void check_devices(const Place& place, int64_t devices);

}  // namespace bellows::parallel
