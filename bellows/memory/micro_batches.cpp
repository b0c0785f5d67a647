#include "bellows/memory/micro_batches.h"

#include <algorithm>
#include <exception>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/device/memory.h"
#include "bellows/device/move.h"
#include "bellows/memory/out_of_memory.h"
#include "bellows/memory/surroundings.h"

namespace bellows::memory {

int64_t batch_samples(const Tree& batch) {
  std::optional<int64_t> samples;
  std::string first;
  batch.for_each_tensor([&](const std::string& path, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.dim() == 0) return;
    const int64_t own = tensor.size(0);
    if (!samples) {
      samples = own;
      first = input_name(path);
    } else if (*samples != own) {
      throw ValueError(concat("batch: got ", *samples, " samples in ", first, " and ", own, " in ",
                              input_name(path), ", expected the same first dimension in all"));
    }
  });
  if (!samples || *samples == 0)
    throw ValueError("batch: got no samples, expected tensors with a first dimension of 1 or more");
  return *samples;
}

std::vector<MicroBatch> split_batch(const Tree& batch, int64_t count) {
  const int64_t samples = batch_samples(batch);
  count = std::clamp<int64_t>(count, 1, samples);
  std::vector<MicroBatch> out;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = i * samples / count, own = (i + 1) * samples / count - from;
    Tree part = batch.map([&](const at::Tensor& tensor) {
      return !tensor.defined() || tensor.dim() == 0 || count == 1 ? tensor
                                                                  : tensor.narrow(0, from, own);
    });
    out.push_back(
        {std::move(part), own, static_cast<double>(own) / static_cast<double>(samples), i, count});
  }
  return out;
}

MicroBatches::MicroBatches(MicroBatchOptions options)
    : options_(std::move(options)), parts_(options_.parts) {
  if (parts_ < 1)
    throw ValueError(concat("micro-batches: parts: got ", parts_, ", expected 1 or more"));
}

void MicroBatches::run(const Tree& batch, const std::function<void(const MicroBatch&)>& step,
                       const std::function<void()>& undo) {
  const int64_t samples = batch_samples(batch);
  const RandomStates start(accelerators_in(batch));
  for (;;) {
    std::exception_ptr failed;
    try {
      for (const MicroBatch& part : split_batch(batch, parts_)) step(part);
      synchronize(options_.device);
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      failed = std::current_exception();
    }
    const bool all = options_.agree ? options_.agree(!failed) : !failed;
    if (all) return;
    undo();
    if (parts_ >= samples) {
      if (failed) std::rethrow_exception(failed);
      throw Error("micro-batches: another rank ran out of memory with one sample a part");
    }
    failed = nullptr;  // may hold the failed attempt's tensors
    empty_cache(options_.device);
    start.restore();
    parts_ = std::min(2 * parts_, samples);
    log::warn(concat("out of memory with a batch of ", samples, ": from now on in ", parts_,
                     " parts, whose gradients are added up; the numbers are those of the whole "
                     "batch, batch norm's apart"));
  }
}

}  // namespace bellows::memory
