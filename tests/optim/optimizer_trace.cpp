// Runs an optimizer over recorded gradients: optimizer_trace IN OUT steps=N [clip=NORM] KEY=VALUE…,
// the further keys being the optimizer's options. IN (safetensors) holds the initial weights as
// "weight.NAME" and the gradients as "gradient.STEP.NAME" (absent: none in that step). OUT receives
// "weight.STEP.NAME" after every 7th step, "norm.STEP", and the last state as "state.NAME.FIELD".
#include <cstdio>

#include "bellows/checkpoint/safetensors.h"
#include "bellows/core/error.h"
#include "bellows/core/options.h"
#include "bellows/optim/optimizer.h"

namespace {

using namespace bellows;

void set_option(Options& options, const std::string& key, const std::string& value) {
  if (value == "true" || value == "false") {
    options.set(key, value == "true");
  } else if (const size_t comma = value.find(','); comma != std::string::npos) {
    options.set(key, std::vector<double>{std::stod(value), std::stod(value.substr(comma + 1))});
  } else if (key == "name") {
    options.set(key, value);
  } else {
    options.set(key, std::stod(value));
  }
}

void run(const char* in, const char* out, std::map<std::string, std::string> settings) {
  std::map<std::string, at::Tensor> recorded;
  NamedTensors parameters;
  for (const auto& [name, tensor] : checkpoint::read_safetensors(in)) {
    recorded[name] = tensor;
    if (name.starts_with("weight.")) {
      parameters.emplace_back(name.substr(7), tensor.clone().set_requires_grad(true));
    }
  }
  Options options;
  for (const auto& [key, value] : settings) {
    if (key != "steps" && key != "clip") set_option(options, key, value);
  }
  const auto optimizer = optim::make_optimizer(options, parameters);
  options.reject_unknown();

  NamedTensors results;
  for (int step = 0; step < std::stoi(settings.at("steps")); ++step) {
    const std::string number = std::to_string(step);
    for (const auto& [name, parameter] : parameters) {
      const auto found = recorded.find("gradient." + number + "." + name);
      if (found != recorded.end()) parameter.mutable_grad() = found->second.clone();
    }
    if (settings.contains("clip")) {
      results.emplace_back("norm." + number,
                           optim::clip_grad_norm_(parameters, std::stod(settings.at("clip"))));
    }
    optimizer->step();
    optimizer->zero_grad();
    if (step % 7 != 0) continue;
    for (const auto& [name, parameter] : parameters) {
      results.emplace_back("weight." + number + "." + name, parameter.detach().clone());
    }
  }
  optimizer->state_dict().at("state").for_each_tensor(
      [&](const std::string& path, const at::Tensor& tensor) {
        results.emplace_back("state." + path, tensor);
      });
  checkpoint::write_safetensors(out, results);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  try {
    std::map<std::string, std::string> settings;
    for (int i = 3; i < argc; ++i) {
      const std::string setting = argv[i];
      const size_t equals = setting.find('=');
      settings[setting.substr(0, equals)] = setting.substr(equals + 1);
    }
    run(argv[1], argv[2], settings);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
