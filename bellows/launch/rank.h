// One rank of one generation: its process, its output, what it has said, how it has ended.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bellows/launch/agent_peer.h"
#include "bellows/launch/child.h"
#include "bellows/launch/console.h"
#include "bellows/launch/line_stream.h"

namespace bellows::launch {

/// One of its output streams.
struct RankOutput {
  Descriptor pipe, file;
  std::filesystem::path file_path;
  bool shown = true;  // on the console
  LineStream lines{""};
  Tail tail;
  Clock::Duration last{};  // when bytes came last

  /// Reads once, at most a quarter of a MiB. False where there is nothing now.
  bool read(Console& console, Sink& sink);
  /// Reads all there is, then lets go of the pipe.
  void finish(Console& console, Sink& sink);

 private:
  void write_file(std::string_view bytes, Console& console);
};

class Rank {
 public:
  int number = 0;  // among all of the job
  int local = 0;   // on this node
  Child child;
  AgentPeer agent;
  RankOutput out, err;
  Clock::Duration started{}, ended{};
  std::optional<int> status;  // as waitpid has it; nothing while it runs
  int sent = 0;               // with what the launcher has told it to end last
  bool group_gone = false;    // no process of its group is left

  bool running() const { return !status; }
  bool failed() const { return status && *status != 0; }
  /// The exit code, or 128 + n.
  int code() const;
  /// Whether it ended by that signal, or as shells report it.
  bool ended_by(int signal) const;
  /// Sends it to the whole group, and wakes it where it is stopped. Never another group's.
  void signal(int number);
  /// Looks whether processes of its group are left, once it has ended itself.
  void look_at_group();
  double seconds() const;
};

}  // namespace bellows::launch
