// Start-up. Every program calls init() before it touches LibTorch; train_main does.
#pragma once

#include <string>

namespace bellows {

/// Tells `bellows launch`, where that started this process, that it is there (core/agent_client.h).
/// Where simulated devices are on (sim.h), or BELLOWS_SIM_DEVICES asks for them, leaves CUDA alone
/// and sees that they are on. Else: opens libtorch_cuda and Bellows' CUDA module where both are on
/// disk and an NVIDIA driver is present. Idempotent, thread-safe. Costs nothing on a machine
/// without a driver; ~0.1 s with one. LibTorch caches the absence of CUDA at the first backward or
/// availability query: if that has happened before, and CUDA could have been loaded,
/// EnvironmentError says that init() came too late.
void init();

/// Whether init() has run.
bool initialized();

}  // namespace bellows
