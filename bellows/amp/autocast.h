// Autocast: each operator in the precision that suits it. Source: torch/amp/autocast_mode.py.
#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace bellows::amp {

struct AutocastOptions {
  /// float16 or bfloat16. Without: what is in force for that kind of device, at first float16 on
  /// CUDA, bfloat16 on the CPU and on simulated devices.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// false: operators run in the types of their arguments, also inside of another guard.
  bool enabled = true;
  /// Whether a weight is cast once, and the cast used again while the outermost guard is open.
  /// Without: what is in force, at first true.
  std::optional<bool> cache_enabled = std::nullopt;
};

/// While alive, operators of this thread on this kind of device (the index does not matter) run
/// under autocast, and so do those of a backward started meanwhile; open it for the forward pass
/// and the loss alone. Guards nest, for several kinds too; they end in reverse order, on the thread
/// that made them, and each restores what it found.
///
/// LibTorch's cache of casts is one for the whole process and knows a weight by its address alone.
/// So that no thread gets a cast that is stale or of another type, the cache is emptied when an
/// outermost guard is opened and when it ends, and a guard goes without it where one of another
/// type is open for that kind of device, in whichever thread. The optimizers of Bellows and
/// GradScaler::step empty it as well; whoever else changes weights while a guard is open calls
/// clear_autocast_cache() after.
class Autocast {
 public:
  /// Throws ValueError for another dtype or a kind of device without autocast, EnvironmentError for
  /// simulated devices that are not switched on.
  explicit Autocast(c10::Device device, AutocastOptions options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType type_;
  at::ScalarType dtype_;
  bool shares_cache_;
  bool was_enabled_, was_cached_;
  at::ScalarType was_dtype_;
};

/// Of this thread, for that kind of device.
bool is_autocast_enabled(c10::Device device);
at::ScalarType autocast_dtype(c10::Device device);
/// Drops all cached casts, of all threads: safe at any time.
void clear_autocast_cache();

}  // namespace bellows::amp
