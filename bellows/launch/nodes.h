// What the launcher of a node hears from the other nodes of its job, and tells them. A job of one
// node has itself alone to ask.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bellows/launch/launch.h"
#include "bellows/launch/master_socket.h"

namespace bellows::launch {

/// This node's part of one start of all ranks.
struct Assignment {
  int generation = 0;  // starts before this one, for whatever reason: the number of its log folder
  int restarts = 0;    // those of them that a failure has cost
  int node = 0, nodes = 1;
  int first_rank = 0;  // of this node
  int world_size = 1;
  std::string master_address;
  int master_port = 0;
  /// Held for rank 0's store by the node that starts rank 0; null on the others, and where the
  /// launcher is to make it from its options.
  std::shared_ptr<MasterSocket> master;
  /// Further variables for the ranks; what the user has set stays.
  std::map<std::string, std::string> variables;
};

struct Order {
  enum class Kind {
    start,   // the ranks, by `assignment`
    stop,    // them, as a rank of another node failed or the nodes are others now
    ask,     // them to save and end: `signal` was sent to a launcher for the `times`th time
    tell,    // the user `text`, and nothing else
    finish,  // with `code`
  };
  Kind kind = Kind::finish;
  Assignment assignment;
  std::string text;  // whole lines for the user, said first
  int signal = 0, times = 0;
  int code = 0;

  static Order of(Kind kind, std::string text = "") {
    Order order;
    order.kind = kind;
    order.text = std::move(text);
    return order;
  }
};

/// A rank that failed first on its node.
struct Failure {
  int rank = -1;
  int code = 1;
  bool killed = false;  // by a signal: likely the cause and not what somebody noticed
  std::string how;      // "exit code 7"
};

/// What has become of this node's ranks, once all of them have ended.
struct Outcome {
  int code = 0;                    // the exit code of a launcher of one node
  std::optional<Failure> failure;  // of a rank that was not stopped
  std::string report;              // of that, as shown on this node
  int asked = 0;                   // the signal that asked the ranks to end, or 0
};

/// Called by the launcher's thread alone.
class Nodes {
 public:
  virtual ~Nodes() = default;
  /// Once, before anything else: signals are blocked from now on, and threads may be started.
  virtual void begin() {}
  /// Readable when next() has something; -1: it always answers at once.
  virtual int fd() const { return -1; }
  /// The next order; never waits.
  virtual std::optional<Order> next() = 0;
  /// A rank of this node has failed; the others are being ended.
  virtual void failed(const Failure&) {}
  /// All of this node's ranks have ended.
  virtual void ended(const Outcome& outcome) = 0;
  /// Somebody asked this node's launcher to end, for the `times`th time.
  virtual void asked(int signal, int times) = 0;
  /// For people: what is waited for. Whole lines.
  virtual std::string describe() const { return ""; }
};

/// A job of one node.
class OneNode : public Nodes {
 public:
  explicit OneNode(const Options& options);
  std::optional<Order> next() override;
  void ended(const Outcome& outcome) override;
  void asked(int, int) override {}

 private:
  const int max_restarts_;
  std::optional<Order> order_;
  Assignment next_;
};

}  // namespace bellows::launch
