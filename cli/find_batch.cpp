#include <iostream>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/device.h"
#include "bellows/device/memory.h"
#include "bellows/device/move.h"
#include "bellows/memory/batch_size.h"
#include "bellows/memory/out_of_memory.h"
#include "bellows/nn/registry.h"
#include "bellows/train/command_line.h"
#include "bellows/train/job.h"
#include "bellows/train/recovery.h"
#include "bellows/train/step.h"
#include "bellows/train/update.h"
#include "cli/memory_commands.h"

namespace bellows::cli {
namespace {

struct FindBatchArguments : train::ConfigArguments {
  std::string search = "binary";
  int64_t start = 1, limit = int64_t{1} << 20, steps = 3;
};

/// The first sample of the training data, so many times.
Tree batch_of(const Tree& example, int64_t samples) {
  return example.map([&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.dim() == 0) return tensor;
    std::vector<int64_t> sizes = tensor.sizes().vec();
    sizes[0] = samples;
    return tensor.narrow(0, 0, 1).expand(sizes).contiguous();
  });
}

class Finder {
 public:
  Finder(const FindBatchArguments& arguments, train::Config& config)
      : group_(train::join_ranks(config)),
        job_(train::make_job(config, nn::builtin_models(), train::Purpose::training, group_)),
        device_(job_.device.device),
        step_(train::classification()),
        update_(*job_.optimizer, device_, group_, job_.update),
        arguments_(arguments) {
    job_.model->to(device_);
    if (group_.size() > 1)
      ddp_ = std::make_unique<parallel::DdpCore>(*job_.model, group_, job_.ddp);
    job_.model->train();
    job_.training->start(0);
    const auto batch = job_.training->next();
    if (!batch) throw ValueError("the training data have no sample");
    example_ = to(batch->data, c10::kCPU);
    job_.training.reset();
    job_.evaluation.reset();
  }

  void run() {
    say(concat("device ", job_.device.reason, ", model ", job_.model_name, ", ",
               job_.optimizer->name(), ", precision ", amp::precision_name(job_.update.precision)));
    const int64_t found = memory::find_batch_size(
        [this](int64_t samples) { try_batch(samples); },
        {.search = arguments_.search == "power" ? memory::Search::power : memory::Search::binary,
         .start = arguments_.start,
         .limit = arguments_.limit,
         .steps = arguments_.steps,
         .device = device_,
         .reset = [this] { job_.optimizer->zero_grad(); },
         .agree = [this](bool fits) { return train::on_all(group_, fits); }});
    say(concat("largest batch that fits", group_.size() > 1 ? ", on each rank" : "", ": ", found,
               found == arguments_.limit ? " (the limit of the search)" : ""));
    say(concat("data.batch_size=", found));
  }

 private:
  void say(const std::string& line) const {
    if (group_.rank() == 0) std::cout << line << std::endl;
  }

  void try_batch(int64_t samples) {
    reset_peak(device_);
    try {
      step(samples);
    } catch (const std::exception& error) {
      if (memory::is_out_of_memory(error)) say(concat("batch ", samples, ": does not fit"));
      throw;
    }
    const int64_t peak = memory_stats(device_).peak_allocated;
    const std::string most =
        peak > 0 ? ", at most " + human_bytes(static_cast<double>(peak)) + " in use" : "";
    say(concat("batch ", samples, ": fits", most));
  }

  /// A whole training step. Ranks reduce nothing here, as one that fails would leave the others
  /// waiting; the memory of the reduction is there already.
  void step(int64_t samples) {
    std::optional<parallel::DdpCore::NoSync> no_sync;
    if (ddp_) no_sync.emplace(ddp_->state());
    const Tree batch = to(batch_of(example_, samples), device_);
    job_.optimizer->zero_grad();
    const nn::Model model = ddp_ ? ddp_->model() : *job_.model;
    update_.backward(update_.forward(step_, model, batch).loss, 1);
    update_.step();
  }

  parallel::Group group_;
  train::Job job_;
  c10::Device device_;
  train::StepFunction step_;
  train::Update update_;
  const FindBatchArguments& arguments_;
  std::unique_ptr<parallel::DdpCore> ddp_;
  Tree example_;
};

}  // namespace

int find_batch_command(int argc, char** argv) {
  FindBatchArguments arguments;
  CLI::App app(
      "Finds the largest data.batch_size with which a training step fits into the device's "
      "memory,\n"
      "by running whole steps. Writes nothing. Under `bellows launch` all ranks agree on one.",
      "bellows find-batch");
  app.add_option("config", arguments.config, "Configuration file (TOML)")
      ->required()
      ->type_name("CONFIG");
  train::add_common(app, arguments);
  app.add_option("--search", arguments.search,
                 "power: only powers of two times the start; binary: then narrowed down")
      ->check(CLI::IsMember({"power", "binary"}))
      ->capture_default_str();
  app.add_option("--start", arguments.start, "The first size tried")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--limit", arguments.limit, "The largest size tried")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--steps", arguments.steps, "Steps in a row that the result must run")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  app.footer(
      "The last line is `data.batch_size=N`, as --set takes it.\n"
      "Exit codes: 0 done, 1 not even one sample fits, 2 bad usage or configuration,\n"
      "3 device or data not usable.");
  if (const auto code = train::parse(app, argc, argv)) return *code;
  train::Config config = train::read_config(arguments);
  train::init_for(config);
  Finder(arguments, config).run();
  return static_cast<int>(ExitCode::done);
}

}  // namespace bellows::cli
