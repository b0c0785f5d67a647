// This node among the others: a thread that writes the node's state to the store, reads the plan,
// and on the node that has the store makes it. Internal.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "bellows/launch/nodes.h"
#include "bellows/nodes/coordinator.h"
#include "bellows/nodes/endpoint.h"
#include "bellows/nodes/protocol.h"
#include "bellows/parallel/quick_store.h"

namespace bellows::nodes {

Clock::Duration from_seconds(double seconds);

class Meeting : public launch::Nodes {
 public:
  explicit Meeting(const launch::Options& options);
  /// As close(1, "").
  ~Meeting() override;

  void begin() override;
  int fd() const override { return wake_.get(); }
  std::optional<launch::Order> next() override;
  void failed(const launch::Failure& failure) override;
  void ended(const launch::Outcome& outcome) override;
  void asked(int signal, int times) override;
  std::string describe() const override;

  /// Leaves: tells the others, waits for them where this node has their store (--rdzv-conf
  /// close_timeout), and ends the thread. `why` where this node ends for a reason of its own.
  void close(int code, const std::string& why);

 private:
  using Time = Clock::Duration;
  using Order = launch::Order;

  void work();
  void connect();
  bool try_to_serve();
  bool try_to_reach(std::string& why);
  void wait_for_job(Time deadline);
  void join();
  bool exchange();
  void follow(const std::string& text);
  void obey(const Plan& plan);
  bool is_out(const Plan& plan);
  launch::Assignment assignment(const Plan& plan, size_t place) const;
  void start(const Plan& plan, size_t place);
  void skip(int generation);
  void pass_on_requests(const Plan& plan, const NodeState& state, bool member);
  void wait_anew();
  void say(const Plan& plan);
  void remind();
  void no_answer();
  void finish(int code, const std::string& text);
  void order(Order order);
  void tell(const std::string& text);
  NodeState own_state() const;
  bool pause(std::chrono::milliseconds most);
  std::string endpoint() const;
  std::string who_serves() const;
  int place_in(const Plan& plan) const;

  const launch::Options& options_;
  const launch::NodeOptions& nodes_;
  const Time lost_after_;
  launch::Descriptor wake_;
  std::thread thread_;

  // Of the thread alone.
  std::shared_ptr<Coordinator> coordinator_;  // where this node has the store
  std::unique_ptr<parallel::QuickStore> store_;
  Plan plan_;
  Job job_;
  Time answered_{}, waiting_since_{}, reminded_{};
  int obeyed_asks_ = 0;
  int failure_told_ = -1;  // generation
  std::optional<Time> left_at_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  NodeState state_;
  std::shared_ptr<launch::MasterSocket> master_;
  std::deque<Order> orders_;
  std::string doing_ = "starting";
  bool news_ = false, closing_ = false, finished_ = false;
};

}  // namespace bellows::nodes
