#include "bellows/train/job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "bellows/amp/master_weights.h"
#include "bellows/amp/precision.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/seed.h"
#include "bellows/parallel/init.h"
#include "bellows/train/job_data.h"

namespace bellows::train {
namespace {

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
    const auto type = amp::settings_of(job.update.precision).parameters;
    logits = job.model->forward(amp::cast_floating(example[0], type)).tensor();
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

UpdateOptions update_options(Options& precision, Options& optimizer) {
  UpdateOptions options;
  constexpr double kLargest = std::numeric_limits<double>::max();
  const auto mode =
      precision.get_one_of("mode", "fp32", {"fp32", "tf32", "bf16", "fp16", "bf16-true"});
  options.precision = amp::parse_precision(mode);
  auto& scaler = options.scaler;
  scaler.init_scale = precision.get_in<double>("init_scale", scaler.init_scale, 1e-30, 1e30);
  scaler.growth_interval =
      precision.get_in<int64_t>("growth_interval", scaler.growth_interval, 1, kMany);
  scaler.max_consecutive_skips =
      precision.get_in<int64_t>("max_consecutive_skips", scaler.max_consecutive_skips, 0, kMany);
  options.clip_norm = optimizer.get_in<double>("clip_norm", 0, 0, kLargest);
  options.clip_value = optimizer.get_in<double>("clip_value", 0, 0, kLargest);
  return options;
}

memory::CheckpointPolicy checkpoint_policy(Options& table) {
  const auto text = table.get<std::string>("checkpointing", "none");
  try {
    return memory::parse_checkpoint_policy(text);
  } catch (const ValueError& error) {
    table.fail("checkpointing", error.what());
  }
}

/// Over float32 copies, where the parameters are kept in another type.
std::unique_ptr<optim::Optimizer> make_optimizer(Options& options, const nn::Model& model,
                                                 at::ScalarType type) {
  if (type == at::kFloat) return optim::make_optimizer(options, model.named_parameters());
  amp::convert(model.named_parameters(), type);
  amp::convert(model.named_buffers(), type);
  return std::make_unique<amp::MasterWeights>(model.named_parameters(), [&](NamedTensors masters) {
    return optim::make_optimizer(options, std::move(masters));
  });
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
  job.sharded_checkpoints = checkpoint.get<bool>("sharded", false);
  if (job.sharded_checkpoints && job.checkpointing.asynchronous) {
    checkpoint.fail("sharded", "cannot be combined with checkpoint.asynchronous");
  }
  auto& stopping = config.table("early_stopping");
  job.patience = stopping.get_in<int64_t>("patience", 0, 0, kMany);
  job.early_stopping.patience = job.patience;
  job.early_stopping.metric = stopping.get_one_of("metric", "test_loss", kMetrics);
  job.early_stopping.min_delta =
      stopping.get_in<double>("min_delta", 0, 0, std::numeric_limits<double>::max());
  auto& schedule = config.table("schedule");
  optim::make_schedule(schedule,
                       {.steps = kMany, .epochs = kMany});  // checks: the length is unknown
  job.update = update_options(config.table("precision"), config.table("optim"));
  job.accumulate = config.table("optim").get_in<int64_t>("accumulate", 1, 1, kMany);

  job.recover = config.table("memory").get<bool>("recover", true);
  job.recompute = checkpoint_policy(config.table("memory"));

  auto& model_table = config.table("model");
  job.model_name = model_table.get<std::string>("name", "convnet");
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  set_deterministic(deterministic);
  seed_everything(seed);
  job.model = std::make_unique<nn::Model>(registry.make(job.model_name, model_table));
  if (job.recompute.kind != memory::CheckpointPolicy::Kind::none) {
    *job.model = memory::checkpointed(*job.model, job.recompute);
  }
  job.optimizer = make_optimizer(config.table("optim"), *job.model,
                                 amp::settings_of(job.update.precision).parameters);
  config.reject_unknown();
  job.device = pick_device(device_of_rank(device, group));

  data.load_to(job.device.device);
  job.evaluation = data.evaluation();
  check_model_takes(job, data.example(), data.classes());
  if (purpose == Purpose::evaluation) return job;

  // The model is the same on all ranks; what is drawn in training is not.
  if (group.rank() > 0) seed_everything(seed + static_cast<uint64_t>(group.rank()));
  job.training = data.training();
  const int64_t batches = job.training->batches();
  const int64_t steps = (batches + job.accumulate - 1) / job.accumulate;
  job.schedule =
      optim::make_schedule(schedule, {.steps = job.epochs * steps, .epochs = job.epochs});
  if (job.schedule.schedule && job.schedule.schedule->momentum(0) && !job.optimizer->momentum(0)) {
    schedule.fail("cycle_momentum", concat("got true, but ", job.optimizer->name(),
                                           " has neither momentum nor betas"));
  }
  return job;
}

}  // namespace bellows::train
