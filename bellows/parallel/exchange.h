// Lists of tensors that are to be one rank's, or the mean of all ranks'.
#pragma once

#include <vector>

#include "bellows/parallel/group.h"

namespace bellows::parallel {

/// Gives the tensors on all ranks the values they have on `src`, as few broadcasts: neighbours of
/// one type and device together, up to `chunk_bytes`. Autograd's count of in-place changes is left
/// as it is.
void broadcast_tensors(const Group& group, const std::vector<at::Tensor>& tensors, int64_t src,
                       int64_t chunk_bytes = int64_t{250} << 20);

/// The same with the mean over ranks: divided by their number, then summed.
void average_tensors(const Group& group, const std::vector<at::Tensor>& tensors,
                     int64_t chunk_bytes = int64_t{250} << 20);

}  // namespace bellows::parallel
