// Runs optimizers over recorded gradients: optimizer_trace IN OUT CASES. IN (safetensors) holds the
// initial weights as "weight.NAME" and the gradients as "gradient.STEP.NAME" (absent: none in that
// step). Each line of CASES is "LABEL steps=N KEY=VALUE…", separated by tabs: `clip`, `norm_type`
// and `clip_value` clip gradients, `only` names the one parameter there is, and further keys are
// the optimizer's options. LBFGS gets a loss of its own. OUT receives, after "LABEL/",
// "weight.STEP.NAME" after every 7th step, "norm.STEP" or "loss.STEP", and the last state as
// "state.NAME.FIELD".
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include <ATen/core/grad_mode.h>

#include "bellows/checkpoint/safetensors.h"
#include "bellows/core/error.h"
#include "bellows/core/options.h"
#include "bellows/optim/lbfgs.h"
#include "bellows/optim/optimizer.h"

namespace {

using namespace bellows;
using Settings = std::map<std::string, std::string>;
using Recorded = std::map<std::string, at::Tensor>;

void set_option(Options& options, const std::string& key, const std::string& value) {
  if (value == "true" || value == "false") {
    options.set(key, value == "true");
  } else if (value.find(',') != std::string::npos) {
    std::vector<double> numbers;
    std::istringstream in(value);
    for (std::string number; std::getline(in, number, ',');) numbers.push_back(std::stod(number));
    options.set(key, numbers);
  } else if (value.find_first_not_of("0123456789") == std::string::npos) {
    options.set(key, int64_t{std::stoll(value)});
  } else {
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    *end == '\0' ? options.set(key, number) : options.set(key, value);
  }
}

std::string taken(Settings& settings, const std::string& key, const std::string& fallback) {
  const auto found = settings.find(key);
  if (found == settings.end()) return fallback;
  std::string value = found->second;
  settings.erase(found);
  return value;
}

Options options_of(const Settings& settings) {
  Options options("optim");
  for (const auto& [key, value] : settings) set_option(options, key, value);
  return options;
}

void record_weights(const std::string& label, int step, const NamedTensors& parameters,
                    NamedTensors& results) {
  for (const auto& [name, parameter] : parameters) {
    results.emplace_back(label + "/weight." + std::to_string(step) + "." + name,
                         parameter.detach().clone());
  }
}

// Rosenbrock's function over each parameter's values, and half a square.
at::Tensor valley(const NamedTensors& parameters) {
  at::Tensor sum;
  for (const auto& [name, parameter] : parameters) {
    const at::Tensor x = parameter.reshape({-1});
    at::Tensor value = x.sub(1).square().sum().mul(0.5);
    if (x.numel() > 1) {
      const int64_t n = x.numel() - 1;
      value = value.add(x.narrow(0, 1, n).sub(x.narrow(0, 0, n).square()).square().sum().mul(10));
    }
    sum = sum.defined() ? sum.add(value) : value;
  }
  return sum;
}

void run_lbfgs(const std::string& label, int steps, Settings settings,
               const NamedTensors& parameters, NamedTensors& results) {
  settings.erase("name");
  Options table = options_of(settings);
  optim::LBFGSOptions options;
  optim::read_options(table, options);
  table.reject_unknown();
  optim::LBFGS optimizer(parameters, options);
  const double sign = options.maximize ? -1 : 1;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor loss = optimizer.step([&] {
      optimizer.zero_grad();
      at::Tensor value = valley(parameters).mul(sign);
      value.backward();
      return value;
    });
    results.emplace_back(label + "/loss." + std::to_string(step), loss.detach().clone());
    if (step % 7 == 0) record_weights(label, step, parameters, results);
  }
}

void run_steps(const std::string& label, int steps, Settings settings, const Recorded& recorded,
               const NamedTensors& parameters, NamedTensors& results) {
  const double clip = std::stod(taken(settings, "clip", "-1"));
  const double norm_type = std::stod(taken(settings, "norm_type", "2"));
  const double clip_value = std::stod(taken(settings, "clip_value", "-1"));
  Options options = options_of(settings);
  const auto optimizer = optim::make_optimizer(options, parameters);
  options.reject_unknown();
  for (int step = 0; step < steps; ++step) {
    const std::string number = std::to_string(step);
    for (const auto& [name, parameter] : parameters) {
      const auto found = recorded.find("gradient." + number + "." + name);
      if (found != recorded.end()) parameter.mutable_grad() = found->second.clone();
    }
    if (clip >= 0) {
      results.emplace_back(label + "/norm." + number,
                           optim::clip_grad_norm_(parameters, clip, norm_type));
    }
    if (clip_value >= 0) optim::clip_grad_value_(parameters, clip_value);
    optimizer->step();
    optimizer->zero_grad();
    if (step % 7 == 0) record_weights(label, step, parameters, results);
  }
  optimizer->state_dict().at("state").for_each_tensor(
      [&](const std::string& path, const at::Tensor& tensor) {
        results.emplace_back(label + "/state." + path, tensor.clone());
      });
}

void run(const std::string& line, const Recorded& recorded, NamedTensors& results) {
  std::istringstream words(line);
  std::string label, word;
  std::getline(words, label, '\t');
  Settings settings;
  while (std::getline(words, word, '\t')) {
    const size_t equals = word.find('=');
    settings[word.substr(0, equals)] = word.substr(equals + 1);
  }
  const int steps = std::stoi(taken(settings, "steps", ""));
  const std::string only = taken(settings, "only", "");
  NamedTensors parameters;
  for (const auto& [name, tensor] : recorded) {
    if (!name.starts_with("weight.") || (!only.empty() && name.substr(7) != only)) continue;
    parameters.emplace_back(name.substr(7), tensor.clone().set_requires_grad(true));
  }
  if (settings.at("name") == "lbfgs") {
    run_lbfgs(label, steps, settings, parameters, results);
  } else {
    run_steps(label, steps, settings, recorded, parameters, results);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    Recorded recorded;
    for (const auto& [name, tensor] : checkpoint::read_safetensors(argv[1])) {
      recorded[name] = tensor;
    }
    NamedTensors results;
    std::ifstream cases(argv[3]);
    for (std::string line; std::getline(cases, line);) run(line, recorded, results);
    checkpoint::write_safetensors(argv[2], results);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
