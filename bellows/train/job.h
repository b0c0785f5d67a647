// Everything that a configuration describes, built: device, data, model, optimizer. What train_main
// and eval_main stand on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bellows/data/loader.h"
#include "bellows/device/device.h"
#include "bellows/memory/policy.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/make_schedule.h"
#include "bellows/optim/optimizer.h"
#include "bellows/parallel/distributed_data_parallel.h"
#include "bellows/parallel/group.h"
#include "bellows/train/checkpointing.h"
#include "bellows/train/config.h"
#include "bellows/train/early_stopping.h"
#include "bellows/train/update.h"

namespace bellows::train {

struct Job {
  std::string name;
  DeviceChoice device{c10::kCPU, ""};
  int64_t epochs = 0;
  int64_t log_every = 0;
  int64_t batch_size = 0;  // of each rank
  std::string model_name;
  std::unique_ptr<data::Loader> training;
  std::unique_ptr<data::Loader> evaluation;
  std::unique_ptr<nn::Model> model;
  std::unique_ptr<optim::Optimizer> optimizer;
  parallel::DdpOptions ddp;
  bool sharded_checkpoints = false;
  UpdateOptions update;    // precision and clipping
  int64_t accumulate = 1;  // batches of a step
  bool recover = true;     // from running out of memory
  memory::CheckpointPolicy recompute;
  CheckpointingOptions checkpointing;
  optim::ScheduleChoice schedule;
  int64_t patience = 0;  // 0: no early stopping
  EarlyStoppingOptions early_stopping;
};

/// Joins the ranks that a launcher has started, as the table `parallel` says; a group of one
/// process where there was none. Throws as parallel::init.
parallel::Group join_ranks(Config& config);

enum class Purpose { training, evaluation };

/// Reads every table, seeds all generators, picks the device, reads the data and builds the model
/// on the CPU. For an evaluation the training data is not read, `training` stays null
/// and `schedule` constant. Changes nothing on disk. Throws ValueError for anything unknown or out
/// of range, EnvironmentError for an absent device or data. Each rank of `group` gets its share of
/// the data, and generators of its own; where the device has no number, that of its place on its
/// machine.
Job make_job(Config& config, const nn::Registry& registry, Purpose purpose = Purpose::training,
             const parallel::Group& group = {});

}  // namespace bellows::train
