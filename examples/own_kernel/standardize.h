// The launch, without a CUDA header: main.cpp is compiled where there is no toolkit, too.
#pragma once

#include <cstdint>

/// `in` and `out` lie on the current device and hold `images` x `count` values, one image after the
/// other. Enqueued on `stream` (a cudaStream_t). Null, or CUDA's words for why it was not launched.
const char* launch_standardize(const uint8_t* in, float* out, int64_t images, int64_t count,
                               void* stream);
