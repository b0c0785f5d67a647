// What a function sees besides its arguments, kept for when it is run again. Internal.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "bellows/device/stream.h"
#include "bellows/tree/tree.h"

namespace bellows::memory {

/// States of the default generators of the CPU and of some devices.
class RandomStates {
 public:
  explicit RandomStates(const std::vector<c10::Device>& devices);
  /// Sets the generators to what they were.
  void restore() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// Autocast's switches of this thread.
struct AutocastState {
  struct Kind {
    bool enabled;
    at::ScalarType type;
  };
  std::array<Kind, 3> kinds;  // CPU, CUDA, simulated
  bool cache;
  static AutocastState now();
  void set() const;
};

/// The accelerators among the tensors' devices, each once.
std::vector<c10::Device> accelerators_in(const Tree& tensors);

/// Random state, autocast and the current device, as they are now.
class Surroundings {
 public:
  Surroundings(std::vector<c10::Device> devices, bool random);
  const std::vector<c10::Device>& devices() const { return devices_; }

  /// While alive they are as they were; afterwards as before.
  class Restored {
   public:
    explicit Restored(const Surroundings& then);
    ~Restored();
    Restored(const Restored&) = delete;
    Restored& operator=(const Restored&) = delete;

   private:
    std::optional<RandomStates> random_;
    AutocastState autocast_;
    std::optional<DeviceGuard> device_;
  };

 private:
  std::vector<c10::Device> devices_;
  std::optional<RandomStates> random_;
  AutocastState autocast_;
  std::optional<c10::Device> current_;
};

}  // namespace bellows::memory
