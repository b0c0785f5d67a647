// Checks that the schedules share. For their sources.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::optim {

/// Throws ValueError "<schedule>: <key>: got …, expected …" where `holds` is false.
template <class Value>
void require(bool holds, const char* schedule, const char* key, const Value& got,
             const char* expected) {
  if (holds) return;
  throw ValueError(concat(schedule, ": ", key, ": got ", got, ", expected ", expected));
}

inline void require_at_least(int64_t low, const char* schedule, const char* key, int64_t value) {
  if (value >= low) return;
  throw ValueError(concat(schedule, ": ", key, ": got ", value, ", expected at least ", low));
}

/// A finite number of at least 0.
inline void require_factor(const char* schedule, const char* key, double value) {
  require(value >= 0 && std::isfinite(value), schedule, key, value,
          "a finite number of at least 0");
}

/// The group's value, where there is one for all or one for each.
template <class Value>
const Value& of_group(const char* schedule, const char* key, const std::vector<Value>& values,
                      size_t group) {
  if (values.size() == 1) return values[0];
  if (group < values.size()) return values[group];
  throw ValueError(concat(schedule, ": ", key, ": got ", values.size(),
                          " values, expected one for each parameter group; there is a group ",
                          group));
}

}  // namespace bellows::optim
