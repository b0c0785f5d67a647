// Batches on a device, copied there while the program still computes with those before.
#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "bellows/data/loader.h"

namespace bellows::data {

struct DeviceLoaderOptions {
  /// Batches that are on the device, or on their way, before they are asked for. Each takes its
  /// memory there.
  int64_t ahead = 1;
};

/// The loader's batches on `device`. While the program computes with batch k, batch k+1 is copied
/// on a stream of its own; the stream that is current when `next` is called waits for the copy, the
/// host does not, and the batch's memory is not used again before that stream is done with it.
/// Copies run behind only from pinned memory: give the loader pinned_memory(device)
/// (device/memory.h) as LoaderOptions::memory. For the CPU this is the loader itself, and costs
/// nothing. Position and state are those of what was handed out, and the same as the loader's own,
/// so that a state moves between devices. Throws ValueError for a null loader or `ahead` below 1,
/// EnvironmentError for a device whose kind is not loaded.
std::unique_ptr<Loader> to_device(std::unique_ptr<Loader> loader, c10::Device device,
                                  DeviceLoaderOptions options = {});

}  // namespace bellows::data
