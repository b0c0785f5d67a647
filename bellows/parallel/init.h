// How a process finds its group: from the environment that a launcher made, or by hand.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bellows/parallel/group.h"
#include "bellows/parallel/place.h"

namespace bellows::parallel {

struct InitOptions {
  /// One of backends(), or "auto": nccl where it is there and each rank of this machine has a
  /// device of its own, else gloo. With nccl, tensors of CUDA devices go over NCCL and all others
  /// over Gloo; a rank's device is the one of its local rank.
  std::string backend = "auto";
  /// Of every collective, and of the meeting at the start (default: PyTorch's for Gloo).
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Compares operation, shapes and types of every collective among the ranks before it begins, by
  /// one question to rank 0's store each. Without it, that is done when a rank calls something for
  /// the first time. The role of TORCH_DISTRIBUTED_DEBUG=DETAIL.
  bool check_calls = false;
};

/// Back-ends that this process can use: {"gloo"}, and "nccl" where bellows::init() found CUDA.
std::vector<std::string> backends();

/// Joins the group of all ranks that `place_from_environment()` describes; a group of one process
/// where the environment names none. Blocks until all have come. Once in a process: a second call
/// gives the same group. Throws ValueError for an unknown back-end (listing those that are there
/// and the nearest name) and for what place_from_environment refuses; EnvironmentError where rank
/// 0's port is taken, and with nccl where a machine has more ranks than devices or two ranks the
/// same one, which are named; RankError naming the ranks that did not come in time. Ignores SIGPIPE
/// from then on, unless the program has a handler: a connection to a rank that has gone is an
/// error, not the end.
Group init(const InitOptions& options = {});

/// The same with a place given by hand; as often as wanted, for different ports.
Group init(const Place& place, const InitOptions& options = {});

/// For tests and experiments: `ranks` threads of this process, each with a group of all of them
/// over Gloo; returns when all have ended. The first exception is rethrown, after the others'
/// groups have been closed.
void run_threads(int64_t ranks, const std::function<void(Group group)>& body,
                 const InitOptions& options = {});

}  // namespace bellows::parallel
