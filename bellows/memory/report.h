// What holds the memory of a device, and when it was most.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "bellows/nn/model.h"
#include "bellows/optim/optimizer.h"

namespace bellows::memory {

/// Whose memory is told apart. They must live during the call.
struct Parts {
  const nn::Model* model = nullptr;
  const optim::Optimizer* optimizer = nullptr;
};

/// Bytes on one device. Tensors that share memory count once.
struct Report {
  c10::Device device = c10::kCPU;
  int64_t parameters = 0;
  int64_t buffers = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;  // its state
  /// In live tensors of all kinds; on the CPU only where count_host_memory() was called, and then
  /// of those made since.
  std::optional<int64_t> live = {};
  /// Live but none of the above: activations, batches, temporary tensors.
  std::optional<int64_t> activations = {};
  /// Taken from the device but in no tensor: kept for the next ones, or given back by
  /// empty_cache().
  int64_t cached = 0;
  /// In use on the device beyond that: the context, libraries, other programs. CUDA alone.
  std::optional<int64_t> outside = {};
  /// Of the process, on the CPU.
  std::optional<int64_t> resident = {};

  /// A table of these with a line each; lines of what is not known are left out.
  std::string table() const;
};

/// Throws EnvironmentError where the device's kind is not loaded.
Report report(c10::Device device, const Parts& parts = {});

enum class Phase { forward, backward, update };

/// The most live bytes on a device in each phase of a step. It resets the device's peak
/// (reset_peak) at each begin(). On the CPU it begins to count (count_host_memory). One thread.
class PhasePeaks {
 public:
  explicit PhasePeaks(c10::Device device);
  /// Ends the phase at hand. Waits for nothing: memory is taken when work is enqueued.
  void begin(Phase phase);
  void end();
  /// Over all times so far; 0 for a phase that has not been.
  int64_t peak(Phase phase) const { return peaks_[static_cast<size_t>(phase)]; }
  std::string table() const;

 private:
  c10::Device device_;
  std::array<int64_t, 3> peaks_{};
  std::optional<Phase> now_;
};

/// Live bytes and blocks on a device, as its allocator counts them, the host's as
/// count_host_memory() does.
struct Live {
  int64_t bytes = 0;
  int64_t blocks = 0;
};
Live live_memory(c10::Device device);

/// Finds what grows: look() after each step, then check(). For tests and long runs.
class LeakSentinel {
 public:
  /// On the CPU it begins to count. `warm_up` looks are not compared.
  explicit LeakSentinel(c10::Device device = c10::kCPU, int64_t warm_up = 5);
  void look();
  /// Throws Error with first and last numbers where more bytes (beyond `tolerance`) or more tensors
  /// are live at the last look than at any of the first half of the looks.
  void check(int64_t tolerance_bytes = 0) const;

 private:
  c10::Device device_;
  int64_t warm_up_;
  std::vector<Live> looks_;
};

}  // namespace bellows::memory
