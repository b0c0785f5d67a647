// `bellows data bench`: how fast a configuration's data are read, by stage and by number of
// workers, and whether training waits for them.
#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <limits>
#include <set>
#include <thread>

#include <CLI/CLI.hpp>

#include "bellows/core/clock.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/memory.h"
#include "bellows/device/module.h"
#include "bellows/device/move.h"
#include "bellows/device/stream.h"
#include "bellows/train/command_line.h"
#include "bellows/train/job.h"
#include "bellows/train/job_data.h"
#include "bellows/train/step.h"
#include "cli/data_command.h"
#include "cli/progress_line.h"

namespace bellows::cli {
namespace {

using train::DataTable;
using train::Job;
using train::Stage;

struct BenchArguments : train::ConfigArguments {
  std::vector<int64_t> workers;
  double seconds = 1;
};

double now() {
  return std::chrono::duration<double>(monotonic_clock().now()).count();
}

/// Batches without an end: epoch after epoch.
data::Batch next_batch(data::Loader& loader) {
  auto batch = loader.next();
  if (!batch) {
    loader.start(loader.epoch() + 1);
    batch = loader.next();
  }
  if (!batch) throw EnvironmentError("data bench: got an epoch without a batch that can be read");
  return std::move(*batch);
}

/// Calls work(), which gives a number of samples, until the time is up; samples a second.
template <class Work>
double rate(double seconds, Work work) {
  constexpr int kLeast = 3;
  int64_t samples = 0;
  const double begin = now();
  for (int i = 0; i < kLeast || now() - begin < seconds; ++i) samples += work();
  return static_cast<double>(samples) / (now() - begin);
}

struct WorkerRates {
  int64_t workers;
  double alone;     // samples a second that the loader gives
  double training;  // and that training takes
  double waiting;   // share of a step's time that it waits for its batch
};

class Bench {
 public:
  Bench(const BenchArguments& arguments, train::Config& config)
      : seconds_(arguments.seconds),
        job_(train::make_job(config, nn::builtin_models())),
        data_(config.table("data"), static_cast<uint64_t>(config.table("run").get_in<int64_t>(
                                        "seed", 0, 0, std::numeric_limits<int64_t>::max()))),
        device_(job_.device.device),
        step_(train::classification()),
        counts_(arguments.workers.begin(), arguments.workers.end()) {
    job_.training = nullptr;
    job_.model->to(device_);
    job_.model->train();
    data_.load_to(device_);
    data_.evaluation();  // tells the number of classes
    counts_.insert(data_.workers());
    if (!arguments.workers.empty()) return;
    counts_.insert(0);
    const int64_t most = std::max<int64_t>(2, std::thread::hardware_concurrency());
    for (int64_t workers = 1; workers <= most; workers *= 2) counts_.insert(workers);
  }

  void run() {
    stages();
    line_.show("training on one batch");
    data_.set_workers(0);
    const auto loader = data_.training();
    const data::Batch batch = next_batch(*loader);
    train_step(batch);
    const double compute = rate(seconds_, [&] { return train_step(batch); });
    std::vector<WorkerRates> rates;
    for (const int64_t workers : counts_) rates.push_back(with_workers(workers));
    line_.clear();
    print(rates, compute);
  }

 private:
  // All on this thread, without a device.
  void stages() {
    line_.show("stages");
    const auto times = std::make_shared<train::StageTimes>();
    data_.measure(times);
    data_.set_workers(0);
    data_.load_to(c10::kCPU);
    const auto loader = data_.training();
    next_batch(*loader);
    times->reset();
    double copying = 0;
    int64_t samples = 0;
    rate(seconds_, [&] {
      const data::Batch batch = next_batch(*loader);
      if (!device_.is_cpu()) {
        const double begin = now();
        to(batch.data, device_);
        Stream::current(device_).synchronize();
        copying += now() - begin;
      }
      samples += batch.samples;
      return batch.samples;
    });
    line_.clear();
    std::cout << job_.model_name << " on " << data_.dataset() << ", " << loader->samples()
              << " samples in batches of " << data_.batch_size() << ", device "
              << device_name(device_) << "\n\n"
              << "stage      samples/s  us/sample\n";
    const auto count = static_cast<double>(samples);
    print_stage("read", times->seconds(Stage::read) / count);
    print_stage("transform", times->seconds(Stage::transform) / count);
    print_stage("collate", times->seconds(Stage::collate) / count);
    print_stage("copy", copying / count);
    data_.measure(nullptr);
    data_.load_to(device_);
  }

  static void print_stage(const char* name, double seconds) {
    std::cout << std::left << std::setw(9) << name << std::right;
    if (seconds <= 0) {
      std::cout << "          -          -\n";
      return;
    }
    std::cout << std::fixed << std::setprecision(0) << std::setw(11) << 1 / seconds
              << std::setprecision(2) << std::setw(11) << 1e6 * seconds << '\n';
  }

  int64_t train_step(const data::Batch& batch) {
    job_.optimizer->zero_grad();
    const train::StepOutput output = step_(*job_.model, batch.data);
    output.loss.backward();
    job_.optimizer->step();
    Stream::current(device_).synchronize();
    return batch.samples;
  }

  WorkerRates with_workers(int64_t workers) {
    line_.show(concat(workers, " workers"));
    data_.set_workers(workers);
    const auto loader = data_.training();
    WorkerRates result{workers, 0, 0, 0};
    next_batch(*loader);
    result.alone = rate(seconds_, [&] {
      const data::Batch batch = next_batch(*loader);
      Stream::current(device_).synchronize();
      return batch.samples;
    });
    double waited = 0;
    train_step(next_batch(*loader));
    const double begin = now();
    result.training = rate(seconds_, [&] {
      const double asked = now();
      const data::Batch batch = next_batch(*loader);
      waited += now() - asked;
      return train_step(batch);
    });
    result.waiting = waited / (now() - begin);
    return result;
  }

  static void print(const std::vector<WorkerRates>& rates, double compute) {
    std::cout << "\nworkers  data alone  in training  waiting   (samples/s)\n" << std::fixed;
    for (const WorkerRates& rate : rates) {
      std::cout << std::setprecision(0) << std::setw(7) << rate.workers << std::setw(12)
                << rate.alone << std::setw(13) << rate.training << std::setprecision(1)
                << std::setw(7) << 100 * rate.waiting << " %\n";
    }
    std::cout << std::setprecision(0) << "training on one batch again and again: " << compute
              << " samples/s\n\n";
    // The fewest workers that train as fast as any number, but for what measuring scatters.
    constexpr double kScatter = 0.97, kMuch = 0.1;
    const auto best =
        std::max_element(rates.begin(), rates.end(),
                         [](const auto& a, const auto& b) { return a.training < b.training; });
    const auto chosen = std::find_if(rates.begin(), rates.end(), [&](const WorkerRates& rate) {
      return rate.training >= kScatter * best->training;
    });
    const bool input = chosen->waiting > kMuch;
    std::cout << "recommended: data.workers=" << chosen->workers << '\n'
              << (input ? "input" : "compute") << " binds: a step waits " << std::setprecision(1)
              << 100 * chosen->waiting << " % of its time for data" << std::endl;
  }

  const double seconds_;
  Job job_;
  DataTable data_;
  const c10::Device device_;
  train::StepFunction step_;
  std::set<int64_t> counts_;
  ProgressLine line_{std::cerr};
};

}  // namespace

int bench_command(int argc, char** argv) {
  BenchArguments arguments;
  CLI::App app(
      "Measures how fast the data of a configuration are read, by stage and by number of workers,\n"
      "and runs some training steps to see whether they wait for data. Writes nothing.",
      "bellows data bench");
  app.add_option("config", arguments.config, "Configuration file (TOML)")
      ->required()
      ->type_name("CONFIG");
  train::add_common(app, arguments);
  app.add_option("--workers", arguments.workers,
                 "Numbers of workers to try (default: 0, 1, 2, 4, … up to the processors)")
      ->delimiter(',')
      ->check(CLI::Range(0, 1024))
      ->type_name("N,…");
  app.add_option("--seconds", arguments.seconds, "For each measurement")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  app.footer(
      "Exit codes: 0 done, 1 failed while running, 2 bad usage or configuration,\n"
      "3 device or data not usable.");
  if (const auto code = train::parse(app, argc, argv)) return *code;
  train::Config config = train::read_config(arguments);
  train::init_for(config);
  Bench(arguments, config).run();
  return static_cast<int>(ExitCode::done);
}

}  // namespace bellows::cli
