// Rates along schedules: schedule_trace CASES. Each line of CASES is "LABEL KEY=VALUE…", separated
// by tabs: the keys of make_schedule, or `special`, one of those below. Prints "LABEL STEP RATE
// RATE MOMENTUM MOMENTUM" for 61 steps of an optimizer with two groups, which is saved, and both
// made anew and loaded, at step 23.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include <ATen/ops/zeros.h>

#include "bellows/core/error.h"
#include "bellows/core/options.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/make_schedule.h"
#include "bellows/optim/schedule_compose.h"
#include "bellows/optim/schedule_cosine.h"
#include "bellows/optim/schedule_cycle.h"
#include "bellows/optim/sgd.h"

namespace {

using namespace bellows;
using optim::SchedulePointer;
constexpr int kSteps = 60;
constexpr int kSaved = 23;

template <class S, class O>
SchedulePointer make(O options) {
  return std::make_shared<S>(std::move(options));
}

SchedulePointer chained() {
  return std::make_shared<optim::ChainedScheduler>(std::vector{
      make<optim::ConstantLR>(optim::ConstantLROptions{.factor = 0.1, .total_iters = 20}),
      make<optim::ExponentialLR>(0.9)});
}

SchedulePointer long_chain() {
  return std::make_shared<optim::ChainedScheduler>(std::vector{
      make<optim::LinearLR>(optim::LinearLROptions{.start_factor = 0.25, .total_iters = 8}),
      make<optim::CosineAnnealingLR>(optim::CosineAnnealingLROptions{.T_max = 60}),
      make<optim::MultiStepLR>(optim::MultiStepLROptions{.milestones = {30, 40}, .gamma = 0.5})});
}

SchedulePointer sequential() {
  return std::make_shared<optim::SequentialLR>(
      std::vector{
          make<optim::ConstantLR>(optim::ConstantLROptions{.factor = 0.1, .total_iters = 20}),
          make<optim::CosineAnnealingLR>(
              optim::CosineAnnealingLROptions{.T_max = 25, .eta_min = 0.001}),
          make<optim::ExponentialLR>(0.9)},
      std::vector<int64_t>{10, 35});
}

SchedulePointer special(const std::string& name) {
  if (name == "lambda") {
    return std::make_shared<optim::LambdaLR>(std::vector<optim::RateFunction>{
        [](int64_t step) { return std::pow(0.95, static_cast<double>(step)); },
        [](int64_t step) { return 1.0 / static_cast<double>(1 + step / 30); }});
  }
  if (name == "multiplicative") {
    return std::make_shared<optim::MultiplicativeLR>(
        [](int64_t step) { return 1 - 0.1 / static_cast<double>(step + 1); });
  }
  if (name == "chained") return chained();
  if (name == "long_chain") return long_chain();
  if (name == "sequential") return sequential();
  if (name == "onecycle_groups") {
    return make<optim::OneCycleLR>(optim::OneCycleLROptions{.max_lr = {0.3, 0.05},
                                                            .epochs = 6,
                                                            .steps_per_epoch = 10,
                                                            .base_momentum = {0.8, 0.7},
                                                            .max_momentum = {0.9, 0.99}});
  }
  if (name == "cyclic_groups") {
    return make<optim::CyclicLR>(
        optim::CyclicLROptions{.base_lr = {0.01, 0.02},
                               .max_lr = {0.1, 0.3},
                               .step_size_up = 7,
                               .step_size_down = 5,
                               .scale_fn = [](double x) { return 1 / std::sqrt(x); }});
  }
  if (name == "swa") {
    return make<optim::SWALR>(optim::SWALROptions{.swa_lr = {0.05, 0.001}, .anneal_epochs = 15});
  }
  if (name == "swa_linear") {
    return make<optim::SWALR>(
        optim::SWALROptions{.swa_lr = {0.05}, .anneal_epochs = 9, .anneal_strategy = "linear"});
  }
  if (name == "swa_at_once") {
    return make<optim::SWALR>(optim::SWALROptions{.swa_lr = {0.05}, .anneal_epochs = 0});
  }
  throw ValueError("no such case: " + name);
}

optim::ScheduleChoice choice_of(std::istringstream& words) {
  Options table("schedule");
  for (std::string word; std::getline(words, word, '\t');) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (key == "special") {
      return {.schedule = special(value)};
    } else if (key == "milestones") {
      std::vector<int64_t> all;
      std::istringstream list(value);
      for (std::string one; std::getline(list, one, ',');) all.push_back(std::stoll(one));
      table.set(key, all);
    } else if (value == "true" || value == "false") {
      table.set(key, value == "true");
    } else if (*end != '\0') {
      table.set(key, value);
    } else if (value.find_first_not_of("0123456789") == std::string::npos) {
      table.set(key, int64_t{std::stoll(value)});
    } else {
      table.set(key, number);
    }
  }
  auto choice = optim::make_schedule(table, {.steps = kSteps, .epochs = 6});
  table.reject_unknown();
  return choice;
}

/// Falls, rests, rises, with ties.
double metric(int step) {
  return step < 12 ? 10.0 / (step + 1) : step < 30 ? 0.8 : std::abs(std::sin(step)) + 0.5;
}

std::unique_ptr<optim::Optimizer> make_optimizer(bool adam) {
  const auto parameter = [] { return at::zeros({2}).requires_grad_(); };
  if (adam) {
    return std::make_unique<optim::AdamW>(std::vector<optim::ParamGroup<optim::AdamWOptions>>{
        {{{"a", parameter()}}, {.lr = 0.1}}, {{{"b", parameter()}}, {.lr = 0.02}}});
  }
  return std::make_unique<optim::SGD>(std::vector<optim::ParamGroup<optim::SGDOptions>>{
      {{{"a", parameter()}}, {.lr = 0.1, .momentum = 0.9}},
      {{{"b", parameter()}}, {.lr = 0.02, .momentum = 0.9}}});
}

template <class Scheduler, class Argument>
void trace(const std::string& label, const Argument& argument, bool adam, auto step_of) {
  auto optimizer = make_optimizer(adam);
  auto scheduler = std::make_unique<Scheduler>(*optimizer, argument);
  for (int step = 0; step <= kSteps; ++step) {
    std::printf("%s\t%d\t%.17g\t%.17g\t%.17g\t%.17g\n", label.c_str(), step, optimizer->lr(0),
                optimizer->lr(1), *optimizer->momentum(0), *optimizer->momentum(1));
    if (scheduler->get_last_lr() != std::vector{optimizer->lr(0), optimizer->lr(1)}) {
      throw ValueError(label + ": get_last_lr differs");
    }
    if (step == kSaved) {
      const Tree saved = scheduler->state_dict(), saved_optimizer = optimizer->state_dict();
      auto fresh = make_optimizer(adam);
      scheduler = std::make_unique<Scheduler>(*fresh, argument);
      optimizer = std::move(fresh);
      scheduler->load_state_dict(saved);
      optimizer->load_state_dict(saved_optimizer);
    }
    if (step < kSteps) step_of(*scheduler, step);
  }
}

void run(const std::string& line) {
  std::istringstream words(line);
  std::string label;
  std::getline(words, label, '\t');
  const auto choice = choice_of(words);
  const bool adam = label.starts_with("adam");
  if (choice.plateau) {
    trace<optim::ReduceLROnPlateau>(label, *choice.plateau, adam,
                                    [](auto& plateau, int step) { plateau.step(metric(step)); });
  } else {
    trace<optim::LRScheduler>(label, choice.schedule, adam,
                              [](auto& scheduler, int) { scheduler.step(); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    std::ifstream cases(argv[1]);
    for (std::string line; std::getline(cases, line);) run(line);
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
