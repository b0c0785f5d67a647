// SIGINT, SIGTERM and SIGUSR1 (a batch system's warning that the time is nearly up, such as Slurm's
// --signal=USR1@120) as a request to save and stop. The first signal sets a flag that loops poll; a
// second one, of either kind, ends the process at once with 128 + its number. (Under a launcher the
// same signal from it and from another process is one: batch systems send it to all of them.)
#pragma once

namespace bellows {

/// Blocks these signals in the calling thread: a signal that comes now is kept until the
/// handlers stand. For the first instruction of a program; the mask survives exec.
void hold_interrupts();

/// Installs the handlers and lets held signals through. Idempotent; call it from the main thread
/// before others start. A signal that the parent chose to ignore (nohup) stays ignored, and so does
/// a handler for SIGUSR1 that the program has of its own. System calls in progress are restarted
/// (SA_RESTART), so that reads and writes elsewhere do not fail with EINTR.
void install_interrupt_handlers();

/// The signal received so far, or 0. Async-signal-safe, any thread, no cost.
int interrupted();

/// Forgets a received signal (tests, and programs that handle it themselves).
void clear_interrupt();

/// From here on the next signal ends the process at once with 128 + its number: for programs about
/// to leave, and for phases in which nothing can be saved. Installs the handlers where they are not
/// yet.
void interrupts_end_process();

}  // namespace bellows
