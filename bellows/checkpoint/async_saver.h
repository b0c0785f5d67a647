// Saving while training goes on. The role of Python's torch.distributed.checkpoint.async_save.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "bellows/checkpoint/checkpoint.h"

namespace bellows::checkpoint {

/// Copies the state at hand into memory of its own, then writes it in a thread of its own, as
/// `save` does. The copies are kept for the next save: one of everything that is saved, pinned
/// where a tensor is on a device. At most one save is in flight. One thread at a time.
class AsyncSaver {
 public:
  /// Starts the thread. Throws EnvironmentError.
  AsyncSaver();
  /// Waits for the save in flight. An error that nobody was told is logged.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// Waits for the save before and throws its error, if any (then nothing is saved); copies, and
  /// returns: from then on model and parts may change. `after` is called by the saver's thread once
  /// the checkpoint stands, as a part of this save. Throws ValueError as `save`, before anything is
  /// written.
  void save(const std::filesystem::path& root, int64_t step, const nn::Model& model,
            const Parts& parts,
            std::function<void(const std::filesystem::path& directory)> after = {});

  /// Waits for the save in flight; throws its error, if any.
  void wait();
  /// Throws the error of a save that has ended, if any; waits for nothing.
  void rethrow();
  /// Waits for the save in flight; keeps its error.
  void settle() const;
  /// Whether a save is in flight.
  bool busy() const;
  /// The checkpoint saved last, if any; not the one in flight.
  std::optional<std::filesystem::path> last() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bellows::checkpoint
