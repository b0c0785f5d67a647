// One group over two back-ends: tensors of the CPU go one way, those of a device the other.
// Internal.
#pragma once

#include <memory>

#include "bellows/parallel/transport.h"

namespace bellows::parallel {

/// `device` gets the tensors it takes, `host` all others; barriers go over `host`.
std::unique_ptr<Transport> transport_by_device(std::unique_ptr<Transport> host,
                                               std::unique_ptr<Transport> device);

}  // namespace bellows::parallel
