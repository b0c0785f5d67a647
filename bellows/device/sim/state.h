// What the parts of the simulated accelerator share. Internal.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include <c10/core/Device.h>

namespace bellows::sim {

constexpr c10::DeviceType kType = c10::DeviceType::HPU;
constexpr int kMaxDevices = 64;

struct State {
  std::atomic<int> devices = 0;  // 0: not switched on
  std::atomic<int64_t> memory_limit = 0;
  std::atomic<int64_t> copy_delay_ms = 0;
  std::atomic<bool> costs = false;  // a cost model is in force
};
State& state();

inline c10::Device device_at(c10::DeviceIndex index) {
  return {kType, index};
}

/// The three registrations that LibTorch asks for by kind; each once, by enable().
void register_guard();
void register_allocator();
void register_operators();
/// Autocast with the CPU's cast lists, and the LSTM that the CPU takes.
void register_autocast();
void register_lstm();

}  // namespace bellows::sim
