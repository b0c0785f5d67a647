#include "bellows/memory/estimate.h"

#include <algorithm>
#include <iomanip>
#include <mutex>
#include <optional>
#include <sstream>

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/memory/meta.h"
#include "bellows/memory/report.h"

namespace bellows::memory {
namespace {

Tree to_meta(const Tree& batch) {
  return batch.map([](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return at::empty_strided(tensor.sizes(), tensor.strides(),
                             tensor.options().device(c10::kMeta).pinned_memory(false));
  });
}

int64_t bytes_of(const Tree& batch) {
  int64_t sum = 0;
  batch.for_each_tensor([&](const std::string&, const at::Tensor& tensor) {
    sum += static_cast<int64_t>(tensor.storage().nbytes());
  });
  return sum;
}

Estimate run(const EstimateJob& job) {
  std::optional<nn::Model> model;
  std::unique_ptr<optim::Optimizer> optimizer;
  const int64_t before = detail::meta_memory().live;
  const int64_t rounded_before = detail::meta_memory().rounded_live;
  detail::on_meta([&] { model = checkpointed(job.model(), job.checkpointing); });
  model->to(c10::Device(c10::kMeta));
  model->train();
  if (job.optimizer) optimizer = job.optimizer(model->named_parameters());
  const Tree batch = to_meta(job.batch);
  Estimate out;
  // The second step has the optimizer's state, and what a budget of recomputation has measured.
  for (int step = 0; step < 2; ++step) {
    for (const auto& [name, parameter] : model->named_parameters())
      parameter.mutable_grad().reset();
    const int64_t at_rest = detail::meta_memory().live;
    detail::reset_meta_peak();
    {
      const at::Tensor loss = job.loss(*model, batch);
      out.saved = detail::meta_memory().live - at_rest;
      loss.backward();
    }
    if (optimizer) optimizer->step();
  }
  const detail::MetaMemory memory = detail::meta_memory();
  const Report parts =
      report(c10::Device(c10::kMeta), {.model = &*model, .optimizer = optimizer.get()});
  out.parameters = parts.parameters;
  out.buffers = parts.buffers;
  out.gradients = parts.gradients;
  out.optimizer = parts.optimizer;
  out.batch = bytes_of(batch);
  out.peak = memory.rounded_peak - rounded_before;
  out.rounding = out.peak - (memory.peak - before);
  out.activations = std::max<int64_t>(out.peak - out.rounding - out.parameters - out.buffers -
                                          out.gradients - out.optimizer - out.batch,
                                      0);
  return out;
}

std::string line(const std::string& name, int64_t bytes) {
  std::ostringstream out;
  out << std::left << std::setw(30) << name << std::right << std::setw(12)
      << human_bytes(static_cast<double>(bytes)) << "\n";
  return out.str();
}

}  // namespace

Estimate estimate(const EstimateJob& job) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  if (!job.model || !job.loss)
    throw ValueError("estimate: got no model or no loss, expected functions that make them");
  detail::prepare_meta();
  try {
    return run(job);
  } catch (const c10::NotImplementedError& error) {
    throw ValueError(
        concat("estimate: the step uses an operator without a shape function, or "
               "reads a value, which the meta device has not: ",
               error.what_without_backtrace(), ". Measure a step instead (memory::PhasePeaks)"));
  }
}

std::string Estimate::table() const {
  return line("parameters", parameters) + line("buffers", buffers) + line("gradients", gradients) +
         line("optimizer state", optimizer) + line("batch", batch) +
         line("activations, temporary", activations) + line("rounding", rounding) +
         line("peak", peak) + line("CUDA: context, besides", cuda_context) +
         line("CUDA: workspaces, besides", cuda_workspace);
}

}  // namespace bellows::memory
