#include "bellows/memory/estimate.h"

#include <iomanip>
#include <iostream>
#include <limits>

#include "bellows/amp/master_weights.h"
#include "bellows/amp/precision.h"
#include "bellows/core/text.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/optimizer.h"
#include "bellows/train/command_line.h"
#include "bellows/train/job.h"
#include "bellows/train/step.h"
#include "cli/memory_commands.h"

namespace bellows::cli {
namespace {

using amp::Precision;
using memory::CheckpointPolicy;
using memory::Estimate;

struct EstimateArguments : train::ConfigArguments {
  std::string device_memory;
};

std::string bytes(int64_t value) {
  return human_bytes(static_cast<double>(value));
}

class Estimator {
 public:
  Estimator(train::Config& config, train::Job& job)
      : config_(config), job_(job), batch_size_(job.batch_size) {
    job_.training->start(0);
    const auto batch = job_.training->next();
    if (!batch) throw ValueError("the training data have no sample");
    batch_ = batch->data;
  }

  /// `precision`: fp32, for which all that autocast leaves in float32 is counted, or bf16-true.
  Estimate of(Precision precision, const CheckpointPolicy& recompute) {
    const at::ScalarType type = amp::settings_of(precision).parameters;
    return memory::estimate(
        {.model =
             [&] {
               auto model = nn::builtin_models().make(job_.model_name, config_.table("model"));
               if (type != at::kFloat) {
                 amp::convert(model.named_parameters(), type);
                 amp::convert(model.named_buffers(), type);
               }
               return model;
             },
         .loss = [step = train::classification()](
                     const nn::Model& model, const Tree& batch) { return step(model, batch).loss; },
         .optimizer = [&](NamedTensors parameters) -> std::unique_ptr<optim::Optimizer> {
           auto make = [&](NamedTensors some) {
             return optim::make_optimizer(config_.table("optim"), std::move(some));
           };
           if (type == at::kFloat) return make(std::move(parameters));
           return std::make_unique<amp::MasterWeights>(parameters, make);
         },
         .batch = amp::cast_floating(batch_, type),
         .checkpointing = recompute});
  }

  void run(int64_t device_memory) {
    const Precision own = job_.update.precision;
    const bool true16 = own == Precision::bf16_true;
    const Precision counted = true16 ? own : Precision::fp32;
    const Estimate estimate = of(counted, job_.recompute);
    std::cout << "model " << job_.model_name << ", batch " << batch_size_ << ", "
              << job_.optimizer->name() << ", precision " << amp::precision_name(counted)
              << ", recomputation " << job_.recompute.text() << '\n'
              << estimate.table();
    if (own == Precision::bf16 || own == Precision::fp16) {
      std::cout << "with precision " << amp::precision_name(own)
                << ", activations take between half of that and all of it: which operators run in "
                   "16 bits is not counted\n";
    }
    std::cout << '\n' << "peak by precision and recomputation (memory.checkpointing):\n";
    int64_t least = std::numeric_limits<int64_t>::max();
    std::string remedy;
    for (const Precision precision : {Precision::fp32, Precision::bf16_true}) {
      for (const auto& policy : {CheckpointPolicy::none(), CheckpointPolicy::every_block(),
                                 CheckpointPolicy::segments()}) {
        const int64_t peak = of(precision, policy).peak;
        std::cout << "  " << std::left << std::setw(10) << amp::precision_name(precision)
                  << std::setw(10) << policy.text() << std::right << std::setw(12) << bytes(peak);
        const bool fits = device_memory > 0 &&
                          peak + estimate.cuda_context + estimate.cuda_workspace <= device_memory;
        if (device_memory > 0) std::cout << (fits ? "  fits" : "  does not fit");
        std::cout << '\n';
        if (fits && remedy.empty()) {
          remedy = concat("--set precision.mode=\"", amp::precision_name(precision),
                          "\" --set memory.checkpointing=\"", policy.text(), "\"");
        }
        least = std::min(least, peak);
      }
    }
    if (device_memory > 0) advise(estimate, device_memory, remedy);
    std::cout << std::flush;
  }

 private:
  static void advise(const Estimate& estimate, int64_t device_memory, const std::string& remedy) {
    const int64_t needed = estimate.peak + estimate.cuda_context + estimate.cuda_workspace;
    std::cout << '\n' << bytes(needed) << " with a CUDA device's context and workspace ";
    if (needed <= device_memory) {
      std::cout << "fit into " << bytes(device_memory) << '\n';
    } else if (!remedy.empty()) {
      std::cout << "do not fit into " << bytes(device_memory) << "; this does: " << remedy << '\n';
    } else {
      std::cout << "do not fit into " << bytes(device_memory)
                << ", nor does any of these; a smaller data.batch_size with optim.accumulate has "
                   "the same step\n";
    }
  }

  train::Config& config_;
  train::Job& job_;
  const int64_t batch_size_;
  Tree batch_;
};

}  // namespace

int estimate_command(int argc, char** argv) {
  EstimateArguments arguments;
  CLI::App app(
      "Estimates the memory of a training step without taking it: by a dry run on tensors that\n"
      "have shapes and no memory. The data are opened, for the shape of a sample.",
      "bellows estimate");
  app.add_option("config", arguments.config, "Configuration file (TOML)")
      ->required()
      ->type_name("CONFIG");
  train::add_common(app, arguments);
  app.add_option("--device-memory", arguments.device_memory,
                 "Says what fits into so much, and what to turn on: \"24GiB\"")
      ->type_name("SIZE");
  app.footer("Exit codes: 0 done, 2 bad usage or configuration, 3 device or data not usable.");
  if (const auto code = train::parse(app, argc, argv)) return *code;
  const int64_t device_memory =
      arguments.device_memory.empty() ? 0 : parse_bytes(arguments.device_memory, "--device-memory");
  train::Config config = train::read_config(arguments);
  if (arguments.device.empty())
    config.table("run").set("device", std::string("cpu"), "the default");
  train::init_for(config);
  train::Job job = train::make_job(config, nn::builtin_models());
  Estimator(config, job).run(device_memory);
  return static_cast<int>(ExitCode::done);
}

}  // namespace bellows::cli
