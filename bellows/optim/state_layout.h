// What an optimizer keeps for each parameter, and which of it its options use.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace bellows::optim {

/// Shape and place of a state tensor.
enum class Extent {
  parameter,      // shape, type, device and memory layout of the parameter
  count,          // 0-dim float32; on the CPU, unless a fused kernel wants it on the device
  number,         // 0-dim float32 on the CPU
  device_number,  // 0-dim float32 on the parameter's device
  rows,           // of a parameter with two or more dimensions: the last is 1
  columns,        // of the same: the last but one is 1
  vector,         // like the parameter, where it has fewer than two dimensions
};

struct StateField {
  std::string name;
  Extent extent = Extent::parameter;
};

/// Names of the optimizer and of its state tensors, in a fixed order.
struct StateLayout {
  std::string optimizer;
  std::vector<StateField> fields;
};

inline constexpr size_t kMaxFields = 4;

struct FieldUse {
  bool used = false;
  double initial = 0;  // what it is filled with at a parameter's first step
};

/// What a step with some options needs.
struct StateNeeds {
  std::array<FieldUse, kMaxFields> fields = {};
  /// Lists of tensors like the parameters, for intermediate values; kept between steps.
  size_t work = 0;
  /// Parameters come one by one instead of in lists, and share the memory of `work`.
  bool one_by_one = false;
  bool counts_on_device = false;
};

}  // namespace bellows::optim
