#include "bellows/train/train_main.h"

#include <csignal>
#include <exception>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "bellows/amp/master_weights.h"
#include "bellows/checkpoint/checkpoint.h"
#include "bellows/core/agent_client.h"
#include "bellows/core/error.h"
#include "bellows/core/exit_code.h"
#include "bellows/core/file.h"
#include "bellows/core/interrupt.h"
#include "bellows/core/log.h"
#include "bellows/core/text.h"
#include "bellows/device/device.h"
#include "bellows/parallel/group.h"
#include "bellows/train/checkpointing.h"
#include "bellows/train/command_line.h"
#include "bellows/train/job.h"
#include "bellows/train/learning_rate.h"
#include "bellows/train/metrics_file.h"
#include "bellows/train/progress.h"
#include "bellows/train/ranks.h"
#include "bellows/train/run_directory.h"
#include "bellows/train/tensorboard.h"
#include "bellows/train/trainer.h"

namespace bellows {
namespace {
namespace fs = std::filesystem;
using namespace train;

struct Arguments : ConfigArguments {
  std::string run;
  ResumeMode mode;
};

std::string relative_checkpoint(const fs::path& run, const std::optional<fs::path>& checkpoint) {
  return checkpoint ? fs::relative(*checkpoint, run).string() : "";
}

// The folder of a run, which rank 0 opens, and what all ranks do with it.
struct Run {
  std::unique_ptr<RunDirectory> opened;  // on rank 0
  fs::path path;
  std::vector<fs::path> candidates;  // to go on from, the best first
};

Run open_run(const parallel::Group& group, const fs::path& path, const ResumeMode& mode) {
  Run run{.opened = nullptr, .path = path, .candidates = {}};
  const Tree found = on_first_rank(group, [&] {
    run.opened = std::make_unique<RunDirectory>(path, mode);
    Tree::List candidates;
    for (const fs::path& one : run.opened->resume_candidates())
      candidates.emplace_back(one.string());
    return Tree(std::move(candidates));
  });
  for (const Tree& one : found.list()) run.candidates.emplace_back(one.string());
  return run;
}

/// The one inside, where that works on float32 copies of the parameters.
optim::Optimizer& inner(optim::Optimizer& optimizer) {
  auto* masters = dynamic_cast<amp::MasterWeights*>(&optimizer);
  return masters == nullptr ? optimizer : masters->optimizer();
}

void announce(const Job& job, const Run& run, const parallel::Group& group) {
  const std::string ranks =
      group.size() == 1
          ? ""
          : concat(" on each of ", group.size(), " ranks over ", group.backend(), ", ",
                   group.size() * job.batch_size * job.accumulate, " in a step");
  const std::string micro =
      job.accumulate == 1 ? "" : concat(", ", job.accumulate, " of them in a step");
  const std::string precision =
      job.update.precision == amp::Precision::fp32
          ? ""
          : concat(", precision ", amp::precision_name(job.update.precision));
  const auto text = concat("device ", job.device.reason, ", model ", job.model_name, " with ",
                           job.model->parameter_count(), " parameters, ", job.training->samples(),
                           " training samples in batches of ", job.batch_size, micro, ranks,
                           precision, ", ", inner(*job.optimizer).name(), " with lr ",
                           job.optimizer->lr(0), ", run directory ", run.path.string());
  if (group.rank() == 0) std::cout << text << std::endl;
  log::info(text);
}

/// Loads the first candidate that is not damaged, and gives it; nothing for a new run. Options of
/// the optimizer are the configuration's, not the checkpoint's.
std::optional<fs::path> resume(Trainer& trainer, Job& job, const Run& run) {
  optim::Optimizer& optimizer = inner(trainer.optimizer());
  const Tree configured = optimizer.state_dict().at("groups");
  for (const auto& candidate : run.candidates) {
    try {
      trainer.load(candidate, *job.training);
    } catch (const Error& error) {
      if (candidate == run.candidates.back() || !checkpoint::is_damage(error)) throw;
      log::warn(concat("skipping the checkpoint ", candidate.string(), ": ", error.what()));
      continue;
    }
    Tree state = optimizer.state_dict();
    state.dict()["groups"] = configured;
    optimizer.load_state_dict(state);
    if (run.opened) {
      run.opened->drop_checkpoints_after(trainer.progress().step);
      std::cout << "resuming from " << candidate.string() << std::endl;
    }
    return candidate;
  }
  return std::nullopt;
}

void tell_skipped(const data::LoaderReport& report) {
  if (report.skipped == 0) return;
  log::warn(concat(report.skipped,
                   " training samples could not be read and were left out; the first: ",
                   report.first_skipped.front().reason));
}

// What is written and shown, by rank 0.
void add_reports(Trainer& trainer, const fs::path& run) {
  trainer.add(std::make_shared<ProgressDisplay>(
      std::cout, ProgressDisplayOptions{.terminal = isatty(STDOUT_FILENO) != 0}));
  trainer.add(std::make_shared<MetricsFile>(run / "metrics.jsonl"));
  trainer.add(std::make_shared<TensorBoardLogger>(run));
}

void print_result(const Summary& summary, const fs::path& run) {
  std::cout << "checkpoint " << (run / summary.checkpoint).string() << '\n';
  if (const auto found = summary.metrics.find("test_accuracy"); found != summary.metrics.end()) {
    std::cout << "test accuracy " << std::fixed << std::setprecision(2) << 100 * found->second
              << " %\n";
  }
  std::cout << std::flush;
}

/// Trains and writes the summary. Errors from here on are failures while running.
Outcome run_job(Job& job, const Run& run, const parallel::Group& group, const std::string& resolved,
                bool& resumed) {
  Trainer trainer(*job.model, *job.optimizer, classification(),
                  {.epochs = job.epochs,
                   .device = job.device.device,
                   .log_every = job.log_every,
                   .group = group,
                   .ddp = job.ddp,
                   .update = job.update,
                   .accumulate = job.accumulate,
                   .recover = job.recover,
                   .sharded_checkpoints = job.sharded_checkpoints});
  const bool first = group.rank() == 0;
  if (first) add_reports(trainer, run.path);
  if (!job.schedule.is_constant()) {
    trainer.add(std::make_shared<LearningRate>(*job.optimizer, job.schedule));
  }
  if (job.patience > 0) trainer.add(std::make_shared<EarlyStopping>(job.early_stopping));
  job.checkpointing.root = run.path / "checkpoints";
  const auto checkpointing = std::make_shared<Checkpointing>(job.checkpointing);
  trainer.add(checkpointing);

  Summary summary{
      .status = "failed", .device = device_name(job.device.device), .world_size = group.size()};
  const auto write = [&](const std::string& status) {
    if (!first) return;
    summary.status = status;
    summary.progress = trainer.progress();
    summary.metrics = trainer.last_values();
    summary.skipped_samples = job.training->report().skipped;
    if (checkpointing->last())
      summary.checkpoint = relative_checkpoint(run.path, checkpointing->last());
    write_summary(run.path / "summary.json", summary);
  };
  try {
    summary.checkpoint = relative_checkpoint(run.path, resume(trainer, job, run));
    resumed = true;
    // Not before the checkpoint fits it.
    if (first) write_file_atomically(run.path / "config.toml", resolved);
    const Outcome outcome = trainer.fit(*job.training, job.evaluation.get());
    tell_skipped(job.training->report());
    write(outcome == Outcome::completed ? "completed"
          : outcome == Outcome::stopped ? "stopped"
                                        : "interrupted");
    if (first) print_result(summary, run.path);
    return outcome;
  } catch (const std::exception& error) {
    log::debug(error.what());
    summary.error = message_of(error);
    try {
      write("failed");
    } catch (const Error&) {  // a full disk: the error at hand says more
    }
    throw;
  }
}

/// As report(), and to the launcher.
int fail(const std::string& program, const std::exception& error, ExitCode code) {
  agent::exception(message_of(error));
  return report(program, error, code);
}

int train_job(const Arguments& arguments, const nn::Registry& registry,
              const std::string& program) {
  std::optional<Job> job;
  Run run;
  parallel::Group group;
  std::string resolved;
  bool resumed = false;  // or nothing was there to go on from
  try {
    Config config = read_config(arguments);
    init_for(config);
    group = join_ranks(config);
    job = make_job(config, registry, Purpose::training, group);
    run = open_run(group,
                   arguments.run.empty() ? fs::path("runs") / job->name : fs::path(arguments.run),
                   arguments.mode);
    resolved = config.resolved();
    log::add_file(run.path / "logs" / concat("rank-", group.rank(), ".log"));
  } catch (const std::exception& error) {
    return fail(program, error, exit_code(error));
  }
  try {
    announce(*job, run, group);
    const Outcome outcome = run_job(*job, run, group, resolved, resumed);
    group.close();
    return static_cast<int>(outcome == Outcome::interrupted ? ExitCode::interrupted
                                                            : ExitCode::done);
  } catch (const ValueError& error) {  // a checkpoint that does not fit the configuration
    return fail(program, error, ExitCode::usage);
  } catch (const std::exception& error) {
    log::info("failed: " + message_of(error));  // to the log file; report() tells the user
    // A file that cannot be written any more is a failure of the run; damaged data are not.
    const bool file = dynamic_cast<const FileError*>(&error) != nullptr;
    return fail(program, error, resumed && file ? ExitCode::failed : exit_code(error));
  }
}

/// The folder of the run that a checkpoint or run path belongs to.
fs::path run_folder(const fs::path& path) {
  for (fs::path folder = fs::absolute(path).lexically_normal(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (fs::exists(folder / "config.toml")) return folder;
  }
  throw ValueError(path.string() +
                   ": neither this nor a folder above it is a run (no config.toml)");
}

void evaluate(const std::string& path, const Arguments& arguments, const nn::Registry& registry) {
  if (!fs::exists(path)) throw ValueError(path + ": no such run directory or checkpoint");
  const auto checkpoint = find_checkpoint(path, /*prefer_best=*/true);
  if (!checkpoint) throw ValueError(path + ": no whole checkpoint is there");
  Arguments with_config = arguments;
  with_config.config = (run_folder(path) / "config.toml").string();
  Config config = read_config(with_config);
  init_for(config);
  Job job = make_job(config, registry, Purpose::evaluation);
  checkpoint::load_weights(*checkpoint, *job.model);
  Trainer trainer(*job.model, *job.optimizer, classification(),
                  {.device = job.device.device, .update = job.update});
  const auto values = trainer.evaluate(*job.evaluation);
  if (!values) return;
  std::cout << "checkpoint " << checkpoint->string() << " on " << job.device.reason << '\n';
  for (const auto& [name, value] : *values) std::cout << "test_" << name << ' ' << value << '\n';
  std::cout << std::flush;
}

/// What the user called: "bellows train", or the name of a program of their own.
std::string program_name(const char* word) {
  const std::string name = fs::path(word).filename().string();
  return name == "train" || name == "eval" ? "bellows " + name : name;
}

}  // namespace

int train_main(int argc, char** argv, const nn::Registry& registry) {
  open_standard_streams();
  install_interrupt_handlers();
  std::signal(SIGPIPE, SIG_IGN);  // `… | head` must not end a training run
  std::signal(SIGXFSZ,
              SIG_IGN);  // a file-size limit is an error of the write, with the file's name
  Arguments arguments;
  CLI::App app("Trains the model that a configuration file describes.", program_name(argv[0]));
  app.add_option("config", arguments.config, "Configuration file (TOML)")
      ->required()
      ->type_name("CONFIG");
  add_common(app, arguments);
  app.add_option("--run", arguments.run, "Run directory (default: runs/<run.name>)")
      ->type_name("DIR")
      ->check(kNotEmpty);
  app.add_option(
         "--resume", arguments.mode.resume,
         "Go on from the newest checkpoint of the run directory (auto), or from the one given")
      ->type_name("auto|PATH")
      ->check(kNotEmpty);
  app.add_flag("--overwrite", arguments.mode.overwrite,
               "Remove the run that the run directory holds");
  app.footer(
      "Exit codes: 0 done, 1 failed while running, 2 bad usage or configuration,\n"
      "3 device, data or directory not usable, 75 interrupted and saved (go on with --resume "
      "auto).");
  if (const auto code = parse(app, argc, argv)) return *code;
  return train_job(arguments, registry, app.get_name());
}

int eval_main(int argc, char** argv, const nn::Registry& registry) {
  Arguments arguments;
  std::string path;
  CLI::App app(
      "Evaluates the best (else the newest) checkpoint of a run, or the one given, on its test "
      "data.",
      program_name(argv[0]));
  app.add_option("path", path, "Run directory or checkpoint")->required()->type_name("PATH");
  add_common(app, arguments);
  if (const auto code = parse(app, argc, argv)) return *code;
  try {
    evaluate(path, arguments, registry);
    return static_cast<int>(ExitCode::done);
  } catch (const std::exception& error) {
    return report(app.get_name(), error, exit_code(error));
  }
}

}  // namespace bellows
