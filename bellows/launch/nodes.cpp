#include "bellows/launch/nodes.h"

#include <utility>

#include "bellows/core/text.h"
#include "bellows/launch/signals.h"

namespace bellows::launch {

OneNode::OneNode(const Options& options) : max_restarts_(options.max_restarts) {
  next_.world_size = options.ranks;
  next_.master_address = options.master_address;
  next_.master_port = options.master_port;
  order_.emplace();
  order_->kind = Order::Kind::start;
  order_->assignment = next_;
}

std::optional<Order> OneNode::next() {
  return std::exchange(order_, std::nullopt);
}

void OneNode::ended(const Outcome& outcome) {
  order_.emplace();
  if (outcome.failure && outcome.asked == 0 && next_.restarts < max_restarts_) {
    next_.generation = ++next_.restarts;
    order_->kind = Order::Kind::start;
    order_->assignment = next_;
    order_->text = concat("bellows launch: all ranks are started anew (restart ", next_.restarts,
                          " of ", max_restarts_, ")\n");
    return;
  }
  order_->code = outcome.code;
  if (!outcome.failure && outcome.code > 128) {
    order_->text = concat("bellows launch: ended by ", signal_name(outcome.asked),
                          "; not every rank saved its state\n");
  }
}

}  // namespace bellows::launch
