// A rank's side of the agent channel: tells `bellows launch` what this process is doing, so that it
// can say which rank is where when a job hangs, and what a rank died of. Without a launcher every
// call returns after one test of an atomic. With one, a call is one non-blocking send: where the
// launcher does not read, the message is dropped and counted, and training goes on. All functions
// may be called from any thread and throw nothing; only connect() allocates.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace bellows::agent {

/// Takes the channel that the launcher left in the environment variable BELLOWS_AGENT, says hello,
/// and from then on reports exceptions that nobody catches (std::set_terminate; the handler before
/// it still runs). bellows::init() calls it. Idempotent. The descriptor is not passed on to
/// programs started later. False where there is no launcher, or the variable does not name its
/// socket (as in a program started by a rank).
bool connect() noexcept;

/// Whether connect() found a launcher.
bool connected() noexcept;

/// What the process does from now on ("load", "forward", "backward", "save") and at which step.
void phase(std::string_view name, int64_t step = -1) noexcept;

/// A collective begins: its operation, its number in this process, the bucket of parameters it
/// reduces. It counts as going on until collective_done() with that number or the next one.
void collective(std::string_view name, int64_t sequence, int64_t bucket = -1) noexcept;
void collective_done(int64_t sequence) noexcept;

/// The text of an error that is about to end the process, for programs that catch it themselves.
/// Waits for room, at most a second.
void exception(std::string_view text) noexcept;

/// Whether the launcher has asked this rank to save and end, and within how many seconds. Reads the
/// socket without waiting. SIGTERM comes as well; this is for programs that leave signals alone.
std::optional<std::chrono::seconds> stop_requested() noexcept;

/// The TCP socket, bound to MASTER_ADDR:MASTER_PORT and not yet listening, that the launcher holds
/// for rank 0's store: listen on it, and no other program can have taken the port. Once; nothing
/// for other ranks, without a launcher, and where the descriptor is not that socket.
std::optional<int> take_master_socket() noexcept;

}  // namespace bellows::agent
