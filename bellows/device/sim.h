// A simulated accelerator: devices sim:0 … sim:N-1 in host memory, with what makes a device a
// device: memory of their own and a limit to it, errors where devices mix, streams on which copies
// run behind, generators of their own. Values are the CPU's, bit for bit, apart from what
// docs/simulated-devices.md lists. LibTorch prints "hpu:N" for them: they sit on that otherwise
// unused kind. Not together with CUDA in one process.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <vector>

#include <c10/core/Device.h>

namespace bellows::sim {

struct Options {
  /// How many devices; 0: BELLOWS_SIM_DEVICES, and without it as many as device() was asked for.
  int devices = 0;
  /// The limit of each device; 0: BELLOWS_SIM_MEMORY ("512MiB", "2GiB"), and without it 8 GiB.
  int64_t memory_bytes = 0;
  /// An asynchronous copy that nobody waits for starts only after this long, so that a wait that a
  /// program forgot shows as wrong data. Waiting starts it at once: this costs no time.
  std::chrono::milliseconds copy_delay{50};
};

/// Switches simulated devices on for the rest of the process; idempotent for equal options. Nothing
/// is set up, and nothing costs time, before. init() does it where BELLOWS_SIM_DEVICES is set;
/// device() and pick_device("sim:N") where they are asked for one. Throws EnvironmentError where
/// CUDA is loaded, where a backward has already settled the process's devices (call it earlier),
/// and for other options than those in force; ValueError for options or variables out of range.
void enable(const Options& options = {});
bool enabled();
/// Whether BELLOWS_SIM_DEVICES asks for them.
bool wanted();
/// 0 before enable().
int device_count();
/// sim:index, switched on where it is not yet. Throws EnvironmentError for an index past a number
/// that was set, and as enable().
c10::Device device(int index = 0);
/// The limit of each device in bytes.
int64_t memory_limit();

/// What a device is taken to be capable of. Sources of such figures: the vendors' data sheets.
struct Capability {
  double peak_tflops =
      0;  // 10^12 floating-point operations a second, of matrix products and convolutions
  double memory_gbps = 0;  // 10^9 bytes a second, of the device's own memory
  double link_gbps =
      0;  // 10^9 bytes a second, between it and the host or another device (the slower of both)
  double latency_us = 0;  // added to each operator and each copy
};

/// One entry a device, in order; the last one stands for all further devices. From a file:
///   [[device]]
///   peak_tflops = 60.0
///   memory_gbps = 900.0
///   link_gbps = 25.0
///   latency_us = 5.0
/// Throws ValueError naming file, device, key, what was found and what was expected; FileError.
std::vector<Capability> read_cost_model(const std::filesystem::path& file);

/// Charges every operator and copy from now on with simulated time: the larger of its arithmetic at
/// the peak rate and its bytes at the memory's, or the link's for copies, and the latency. Off by
/// default, and with an empty list. enable() reads it from BELLOWS_SIM_COST_MODEL where that names
/// a file. Throws ValueError for a rate that is not above 0 or a negative latency.
void set_cost_model(std::vector<Capability> capabilities);
bool cost_model_on();

/// The virtual clock: simulated time since enable(), advanced only by charged work. Work on one
/// stream follows one another, work on different streams overlaps, and an event carries its time
/// along. The host takes no time; where it waits (synchronize, item(), a copy to pageable memory),
/// it goes to the time of what it waited for.
std::chrono::duration<double> host_time();
/// When all work that has been enqueued on the device will be done.
std::chrono::duration<double> device_time(c10::Device device);

}  // namespace bellows::sim
