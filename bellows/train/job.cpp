#include "bellows/train/job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/seed.h"
#include "bellows/parallel/init.h"
#include "bellows/train/job_data.h"

namespace bellows::train {
namespace {

constexpr int64_t kMany = std::numeric_limits<int64_t>::max();
/// What a classification run reports at the end of an epoch.
const std::vector<std::string> kMetrics{"test_loss", "test_accuracy", "train_loss"};

bool is_folder_name(const std::string& name) {
  const auto plain = [](unsigned char c) { return c >= 0x20 && c != 0x7f && c != '/'; };
  return !name.empty() && name[0] != '.' && std::all_of(name.begin(), name.end(), plain);
}

/// One sample through the model, before anything is written: a model that does not fit the data is
/// a mistake in the configuration, not a failure of the run.
void check_model_takes(const Job& job, const Tree& example, int64_t classes) {
  at::NoGradGuard no_grad;
  job.model->eval();
  at::Tensor logits;
  try {
    logits = job.model->forward(example[0]).tensor();
  } catch (const c10::Error& error) {
    throw ValueError(
        concat("model.name: ", job.model_name,
               " with these settings does not take the data: ", error.what_without_backtrace()));
  }
  if (logits.dim() != 2 || logits.size(1) < classes) {
    throw ValueError(concat("model.name: ", job.model_name,
                            " with these settings gives values of shape ", logits.sizes(),
                            " for one sample, expected [1, ", classes,
                            "]: one for each class of the data"));
  }
}

/// "cuda" is the device that belongs to this rank's place on its machine.
std::string device_of_rank(const std::string& device, const parallel::Group& group) {
  if (group.size() == 1) return device;
  const bool any = device == "cuda" || (device == "auto" && pick_device(device).device.is_cuda());
  return any ? concat("cuda:", parallel::place_from_environment().local_rank) : device;
}

parallel::DdpOptions ddp_options(Options& table) {
  parallel::DdpOptions options;
  options.broadcast_buffers = table.get<bool>("broadcast_buffers", options.broadcast_buffers);
  const auto mib = table.get_in<double>("bucket_cap_mb", 0, 0, 1e6);  // 0: PyTorch's
  if (mib > 0) options.bucket_cap_mb = mib;
  options.find_unused_parameters =
      table.get<bool>("find_unused_parameters", options.find_unused_parameters);
  options.gradient_as_bucket_view =
      table.get<bool>("gradient_as_bucket_view", options.gradient_as_bucket_view);
  options.static_graph = table.get<bool>("static_graph", options.static_graph);
  return options;
}

parallel::InitOptions init_options(Options& table) {
  parallel::InitOptions options;
  options.backend = table.get_one_of("backend", options.backend, {"auto", "gloo", "nccl"});
  options.timeout = std::chrono::milliseconds(
      std::llround(1000 * table.get_in<double>("timeout", 1800, 0.001, 3e7)));
  return options;
}

}  // namespace

parallel::Group join_ranks(Config& config) {
  return parallel::init(init_options(config.table("parallel")));
}

Job make_job(Config& config, const nn::Registry& registry, Purpose purpose,
             const parallel::Group& group) {
  Job job;
  auto& run = config.table("run");
  job.name = run.get<std::string>("name", "run");
  if (!is_folder_name(job.name)) {
    run.fail(
        "name",
        "expected a name for a folder: not empty, no leading '.', no '/' or control characters");
  }
  const auto seed = static_cast<uint64_t>(run.get_in<int64_t>("seed", 0, 0, kMany));
  job.epochs = run.get_in<int64_t>("epochs", 1, 0, 1'000'000'000);
  job.log_every = run.get_in<int64_t>("log_every", 50, 1, kMany);
  const auto device = run.get<std::string>("device", "auto");
  const auto threads = run.get_in<int64_t>("threads", 0, 0, 4096);
  const bool deterministic = run.get<bool>("deterministic", false);

  DataTable data(config.table("data"), seed);
  data.set_rank(group.rank(), group.size());
  job.ddp = ddp_options(config.table("parallel"));
  init_options(config.table("parallel"));  // known here too, where there is nobody to join
  job.batch_size = data.batch_size();

  auto& checkpoint = config.table("checkpoint");
  job.checkpointing.every_steps = checkpoint.get_in<int64_t>("every_steps", 0, 0, kMany);
  job.checkpointing.keep = checkpoint.get_in<int64_t>("keep", 2, 1, kMany);
  job.checkpointing.keep_best = checkpoint.get_in<int64_t>("keep_best", 1, 1, kMany);
  job.checkpointing.metric = checkpoint.get_one_of("metric", "test_loss", kMetrics);
  const auto mode = checkpoint.get_one_of("mode", "auto", {"auto", "min", "max"});
  job.checkpointing.direction = mode == "min"   ? Direction::lower
                                : mode == "max" ? Direction::higher
                                                : Direction::automatic;
  job.checkpointing.asynchronous = checkpoint.get<bool>("asynchronous", false);
  auto& stopping = config.table("early_stopping");
  job.patience = stopping.get_in<int64_t>("patience", 0, 0, kMany);
  job.early_stopping.patience = job.patience;
  job.early_stopping.metric = stopping.get_one_of("metric", "test_loss", kMetrics);
  job.early_stopping.min_delta =
      stopping.get_in<double>("min_delta", 0, 0, std::numeric_limits<double>::max());
  auto& schedule = config.table("schedule");
  optim::make_schedule(schedule,
                       {.steps = kMany, .epochs = kMany});  // checks: the length is unknown
  config.table("precision").get_one_of("mode", "fp32", {"fp32"});

  auto& model_table = config.table("model");
  job.model_name = model_table.get<std::string>("name", "convnet");
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  set_deterministic(deterministic);
  seed_everything(seed);
  job.model = std::make_unique<nn::Model>(registry.make(job.model_name, model_table));
  job.optimizer = optim::make_optimizer(config.table("optim"), job.model->named_parameters());
  config.reject_unknown();
  job.device = pick_device(device_of_rank(device, group));

  data.load_to(job.device.device);
  job.evaluation = data.evaluation();
  check_model_takes(job, data.example(), data.classes());
  if (purpose == Purpose::evaluation) return job;

  // The model is the same on all ranks; what is drawn in training is not.
  if (group.rank() > 0) seed_everything(seed + static_cast<uint64_t>(group.rank()));
  job.training = data.training();
  job.schedule = optim::make_schedule(
      schedule, {.steps = job.epochs * job.training->batches(), .epochs = job.epochs});
  if (job.schedule.schedule && job.schedule.schedule->momentum(0) && !job.optimizer->momentum(0)) {
    schedule.fail("cycle_momentum", concat("got true, but ", job.optimizer->name(),
                                           " has neither momentum nor betas"));
  }
  return job;
}

}  // namespace bellows::train
