// Starting the ranks of a job on this machine and looking after them: what `bellows launch` does.
// Needs no LibTorch; what several nodes settle among themselves is nodes/launch_nodes.h. The words
// are torchrun's.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace bellows::launch {

/// What is done with a rank's standard output and error; one bit each, as in torchrun's --tee.
enum Streams : unsigned { kNoStream = 0, kOut = 1, kErr = 2, kBoth = 3 };

/// How CPUs are given to ranks: torchrun's --numa-binding, and `core`, cores of its own for each.
enum class Binding { none, node, socket, exclusive, core_complex, core };

/// Where several nodes meet, and for how long they wait for each other. Times are seconds.
struct NodeOptions {
  /// How many nodes the job needs and takes; 1 and 1: this machine alone.
  int least = 1, most = 1;
  /// --rdzv-backend static: node `rank` of them, and node 0 has the store. Else (c10d) they are
  /// numbered as they come, and the node whose address the endpoint is has it.
  bool fixed = true;
  int rank = 0;
  /// The endpoint.
  std::string host;
  int port = 0;
  /// This node's address for the others; empty: the one by which it reaches the endpoint.
  std::string local_address;
  double join = 600, last_call = 30, close = 30, call = 5, keep_alive = 5;
  int attempts = 3;
  /// Whether this node has the store; nothing: found out.
  std::optional<bool> has_store;
};

struct Options {
  /// The program, looked up in PATH, and its arguments.
  std::vector<std::string> program;
  int ranks = 1;
  NodeOptions nodes;
  Binding binding = Binding::none;
  /// How often all ranks are started anew after one has failed.
  int max_restarts = 0;
  /// Empty: a number is drawn.
  std::string run_id;
  std::string role = "default";
  /// Where rank 0's store listens. Port 0: a free one.
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  /// From SIGTERM to SIGKILL.
  std::chrono::milliseconds shutdown_timeout{30000};
  /// Empty with streams that go to files: a folder of its own in the folder for temporary files.
  std::filesystem::path log_dir;
  /// One entry a rank: streams that go to a file and not to the console; and to both.
  std::vector<unsigned> redirects, tee;
  /// Ranks whose lines are shown on the console; empty: all.
  std::set<int> shown_ranks;
  /// May contain ${rank}, ${local_rank}, ${role_name} and ${hostname}.
  std::string line_prefix = "[rank ${rank}] ";
  /// Signals, besides SIGINT, SIGTERM and SIGHUP, that ask the ranks to save and end.
  std::set<int> stop_signals;
  /// Every rank is given LOCAL_RANK 0 and one device of its own in CUDA_VISIBLE_DEVICES.
  bool virtual_local_rank = false;
  /// Sentences for the user about flags without effect; printed first.
  std::vector<std::string> notes;
};

/// Runs the job to its end; ranks' lines and reports go to the descriptors `out` and `err`.
/// Returns the exit code: 0 when all ranks returned 0; the code of the rank that failed first, 128
/// + n where signal n ended it; 75 when all saved on request; 128 + n when signal n was to end the
/// job and something did not save. Takes over the process: call it from its only thread, with
/// nothing else that waits for children. Throws ValueError for a program that cannot be run and
/// EnvironmentError where the machine lacks something (a port, descriptors, a writable log folder);
/// then nothing is left running.
int launch(const Options& options, int out = 1, int err = 2);

class Nodes;
/// This node's ranks of a job over several: `nodes` says when they are started and ended, and with
/// which code the launcher returns.
int launch(const Options& options, Nodes& nodes, int out = 1, int err = 2);

}  // namespace bellows::launch
