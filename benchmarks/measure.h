// Timing for the benchmark programs.
#pragma once

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

namespace bellows::bench {

/// Runs `body` `warmup` times, then `rounds` times `steps` times; the median over the rounds of
/// microseconds a step.
template <class Body>
double median_microseconds(int warmup, int rounds, int steps, Body body) {
  for (int i = 0; i < warmup; ++i) body();
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) body();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count() / steps);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[rounds / 2];
}

inline void print_result(double value, double digest, double limit = 0) {
  std::cout << std::setprecision(12) << "{\"value\": " << value << ", \"digest\": " << digest
            << ", \"limit\": " << limit << "}" << std::endl;
}

}  // namespace bellows::bench
