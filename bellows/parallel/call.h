// What a collective is called in errors. Internal.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace bellows::parallel {

struct Call {
  std::string operation = {};    // "all_reduce"
  std::string fingerprint = {};  // what must be equal on all ranks: "all_reduce sum float32 [2, 3]"
  std::string detail = {};       // what this rank alone knows: "bucket 3: fc.weight, fc.bias"
  int64_t bucket = -1;
  std::optional<int64_t> peer = {};  // in the world, where one other rank alone takes part
  bool point_to_point = false;       // not counted as a collective
  bool names_all = false;            // an error names all who are late, not only who is gone
  std::optional<std::chrono::milliseconds> timeout = {};  // another one than the group's
};

/// Names what the collectives that this thread begins are about, while it lives.
class Describe {
 public:
  explicit Describe(std::string detail, int64_t bucket = -1);
  ~Describe();
  Describe(const Describe&) = delete;
  Describe& operator=(const Describe&) = delete;
  /// The innermost of this thread, put into the call.
  static void apply(Call& call);

 private:
  std::string detail_;
  int64_t bucket_;
  const Describe* before_;
};

}  // namespace bellows::parallel
