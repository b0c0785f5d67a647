#include "bellows/optim/make_schedule.h"

#include <algorithm>
#include <array>
#include <limits>

#include "bellows/core/text.h"
#include "bellows/optim/schedule_cosine.h"
#include "bellows/optim/schedule_cycle.h"

namespace bellows::optim {
namespace {

constexpr int64_t kMany = std::numeric_limits<int64_t>::max();
constexpr double kLargest = std::numeric_limits<double>::max();

struct Reader {
  Options& table;
  int64_t total;  // in what is counted

  double number(const char* key, double fallback) {
    return table.get_in<double>(key, fallback, 0, kLargest);
  }
  double factor(const char* key, double fallback) {
    return table.get_in<double>(key, fallback, 0, 1);
  }
  int64_t count(const char* key, int64_t fallback, int64_t least = 1) {
    return table.get_in<int64_t>(key, fallback, least, kMany);
  }
  /// 0, the default: the whole run.
  int64_t length(const char* key) {
    const int64_t read = count(key, 0, 0);
    return read == 0 ? std::max<int64_t>(1, total) : read;
  }
  double required(const char* key) {
    if (!table.has(key)) table.fail(key, "is missing; this schedule needs it");
    return number(key, 0);
  }
};

using Made = std::shared_ptr<const Schedule>;

Made step_lr(Reader read) {
  if (!read.table.has("step_size")) {
    read.table.fail("step_size", "is missing; this schedule needs it");
  }
  return std::make_shared<StepLR>(
      StepLROptions{.step_size = read.count("step_size", 1), .gamma = read.number("gamma", 0.1)});
}

Made multi_step_lr(Reader read) {
  if (!read.table.has("milestones")) {
    read.table.fail("milestones", "is missing; this schedule needs it");
  }
  return std::make_shared<MultiStepLR>(
      MultiStepLROptions{.milestones = read.table.get("milestones", std::vector<int64_t>{}),
                         .gamma = read.number("gamma", 0.1)});
}

Made constant_lr(Reader read) {
  ConstantLROptions options;
  options.factor = read.factor("factor", options.factor);
  options.total_iters = read.count("total_iters", options.total_iters, 0);
  return std::make_shared<ConstantLR>(options);
}

Made linear_lr(Reader read) {
  LinearLROptions options;
  options.start_factor = read.table.get_in<double>("start_factor", options.start_factor, 1e-12, 1);
  options.end_factor = read.factor("end_factor", options.end_factor);
  options.total_iters = read.count("total_iters", options.total_iters);
  return std::make_shared<LinearLR>(options);
}

Made linear(Reader read) {
  LinearLROptions options;
  options.start_factor = read.table.get_in<double>("start_factor", 1, 1e-12, 1);
  options.end_factor = read.factor("end_factor", 0);
  options.total_iters = read.length("total_steps");
  return std::make_shared<LinearLR>(options);
}

Made exponential_lr(Reader read) {
  return std::make_shared<ExponentialLR>(read.required("gamma"));
}

Made polynomial_lr(Reader read) {
  PolynomialLROptions options;
  options.total_iters = read.count("total_iters", options.total_iters);
  options.power = read.number("power", options.power);
  return std::make_shared<PolynomialLR>(options);
}

Made cosine_annealing_lr(Reader read) {
  return std::make_shared<CosineAnnealingLR>(CosineAnnealingLROptions{
      .T_max = read.length("T_max"), .eta_min = read.number("eta_min", 0)});
}

Made warm_restarts(Reader read) {
  return std::make_shared<CosineAnnealingWarmRestarts>(
      CosineAnnealingWarmRestartsOptions{.T_0 = read.length("T_0"),
                                         .T_mult = read.count("T_mult", 1),
                                         .eta_min = read.number("eta_min", 0)});
}

Made warmup_cosine(Reader read) {
  WarmupCosineOptions options;
  options.warmup_steps = read.count("warmup_steps", 0, 0);
  options.total_steps = read.length("total_steps");
  options.start_factor = read.factor("start_factor", 0);
  options.end_factor = read.factor("end_factor", 0);
  if (options.warmup_steps > options.total_steps) {
    read.table.fail("warmup_steps", concat("got ", options.warmup_steps, ", expected at most the ",
                                           options.total_steps, " of the whole schedule"));
  }
  return std::make_shared<WarmupCosine>(options);
}

Made cyclic_lr(Reader read) {
  CyclicLROptions options;
  options.base_lr = {read.required("base_lr")};
  options.max_lr = {read.required("max_lr")};
  options.step_size_up = read.count("step_size_up", options.step_size_up);
  if (const auto down = read.table.find<int64_t>("step_size_down")) {
    options.step_size_down = read.count("step_size_down", *down);
  }
  options.mode =
      read.table.get_one_of("mode", options.mode, {"triangular", "triangular2", "exp_range"});
  options.gamma = read.number("gamma", options.gamma);
  options.cycle_momentum = read.table.get<bool>("cycle_momentum", options.cycle_momentum);
  options.base_momentum = {read.number("base_momentum", options.base_momentum[0])};
  options.max_momentum = {read.number("max_momentum", options.max_momentum[0])};
  return std::make_shared<CyclicLR>(std::move(options));
}

Made one_cycle_lr(Reader read) {
  OneCycleLROptions options;
  options.max_lr = {read.required("max_lr")};
  options.total_steps = read.length("total_steps");
  options.pct_start = read.factor("pct_start", options.pct_start);
  options.anneal_strategy =
      read.table.get_one_of("anneal_strategy", options.anneal_strategy, {"cos", "linear"});
  options.cycle_momentum = read.table.get<bool>("cycle_momentum", options.cycle_momentum);
  options.base_momentum = {read.number("base_momentum", options.base_momentum[0])};
  options.max_momentum = {read.number("max_momentum", options.max_momentum[0])};
  options.div_factor = read.table.get_in<double>("div_factor", options.div_factor, 1e-12, kLargest);
  options.final_div_factor =
      read.table.get_in<double>("final_div_factor", options.final_div_factor, 1e-12, kLargest);
  options.three_phase = read.table.get<bool>("three_phase", options.three_phase);
  return std::make_shared<OneCycleLR>(std::move(options));
}

ReduceLROnPlateauOptions plateau(Options& table) {
  Reader read{table, 1};
  ReduceLROnPlateauOptions options;
  options.mode = table.get_one_of("mode", options.mode, {"min", "max"});
  options.factor = table.get_in<double>("factor", options.factor, 0, 1 - 1e-12);
  options.patience = read.count("patience", options.patience, 0);
  options.threshold = read.number("threshold", options.threshold);
  options.threshold_mode =
      table.get_one_of("threshold_mode", options.threshold_mode, {"rel", "abs"});
  options.cooldown = read.count("cooldown", options.cooldown, 0);
  options.min_lr = {read.number("min_lr", 0)};
  options.eps = read.number("eps", options.eps);
  return options;
}

struct Entry {
  const char* name;
  Made (*make)(Reader);
};

constexpr std::array kEntries{
    Entry{"constantlr", constant_lr},
    Entry{"cosineannealinglr", cosine_annealing_lr},
    Entry{"cosineannealingwarmrestarts", warm_restarts},
    Entry{"cycliclr", cyclic_lr},
    Entry{"exponentiallr", exponential_lr},
    Entry{"linear", linear},
    Entry{"linearlr", linear_lr},
    Entry{"multisteplr", multi_step_lr},
    Entry{"onecyclelr", one_cycle_lr},
    Entry{"polynomiallr", polynomial_lr},
    Entry{"steplr", step_lr},
    Entry{"warmup_cosine", warmup_cosine},
};

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

void require_known(Options& table, const std::string& name) {
  if (name == "constant" || name == "reducelronplateau" ||
      std::ranges::find(kEntries, name, &Entry::name) != kEntries.end()) {
    return;
  }
  std::vector<std::string> names{"constant", "reducelronplateau"};
  for (const Entry& known : kEntries) names.emplace_back(known.name);
  std::ranges::sort(names);
  table.get_one_of("name", "constant", names);  // throws
}

}  // namespace

ScheduleChoice make_schedule(Options& table, RunLength run) {
  ScheduleChoice choice;
  const std::string name = lower(table.get<std::string>("name", "constant"));
  require_known(table, name);
  if (name == "constant") return choice;
  if (name == "reducelronplateau") {
    choice.plateau = plateau(table);
    choice.metric =
        table.get_one_of("metric", "test_loss", {"test_loss", "train_loss", "test_accuracy"});
    choice.by_epoch = true;
    return choice;
  }
  choice.by_epoch = table.get_one_of("interval", "step", {"step", "epoch"}) == "epoch";
  const Reader reader{table, choice.by_epoch ? run.epochs : run.steps};
  choice.schedule = std::ranges::find(kEntries, name, &Entry::name)->make(reader);
  return choice;
}

}  // namespace bellows::optim
