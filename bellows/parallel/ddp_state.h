// What DistributedDataParallel keeps, and the points where join takes part.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "bellows/parallel/distributed_data_parallel.h"
#include "bellows/parallel/reducer.h"

namespace bellows::parallel {

class DdpCore::State {
 public:
  State(nn::Model model, Group group, DdpOptions options);

  /// Those that are broadcast; asked for anew each time, as a model may replace them.
  std::vector<at::Tensor> buffers() const;
  bool will_sync_buffers() const;
  /// Parameters and buffers become those of `src`.
  void sync_module_states(int64_t src) const;

  nn::Model model;
  Group group;
  DdpOptions options;
  NamedTensors trained;
  std::unique_ptr<Reducer> reducer;
  bool sync = true;               // not inside no_sync()
  bool sync_buffers_next = true;  // the last forward pass was a reduced one
  bool watched = false;           // one training pass has been looked at

  // Set by join while it is in force.
  std::function<void()> on_forward;
  std::function<int64_t()> source_of_buffers;
  std::function<void()> before_backward;
  std::function<int64_t()> divisor;
};

}  // namespace bellows::parallel
