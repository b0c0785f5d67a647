// Trains two optimizers under a GradScaler: grad_scaler_trace IN OUT KEY=VALUE…, the keys being
// steps, init_scale, growth_factor, backoff_factor and growth_interval. IN (safetensors) holds
// weights "weight.NAME" and what each loss multiplies them by, "gradient.STEP.NAME"; names that
// begin with "a" are SGD's, the others AdamW's. As grad_scaler_trace.py: SGD's gradients are
// clipped at even steps, AdamW is not stepped at steps 17 + 20 n, a scale is set at step 60, the
// scaler is replaced by one with its state at step 100. OUT receives after every step "scale",
// "tracker", "taken.a", "taken.b" (vectors by step) and "weight.STEP.NAME".
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include "bellows/amp/grad_scaler.h"
#include "bellows/checkpoint/safetensors.h"
#include "bellows/core/error.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"

namespace {

using namespace bellows;

struct Trace {
  std::vector<double> scale, tracker, taken_a, taken_b;
};

at::Tensor vector(const std::vector<double>& values) {
  return at::tensor(values, at::TensorOptions(at::kDouble));
}

class Run {
 public:
  Run(const char* in, const std::map<std::string, double>& settings)
      : steps_(static_cast<int>(settings.at("steps"))),
        scaler_({.init_scale = settings.at("init_scale"),
                 .growth_factor = settings.at("growth_factor"),
                 .backoff_factor = settings.at("backoff_factor"),
                 .growth_interval = static_cast<int64_t>(settings.at("growth_interval"))}) {
    for (const auto& [name, tensor] : checkpoint::read_safetensors(in)) {
      recorded_[name] = tensor;
      if (!name.starts_with("weight.")) continue;
      const at::Tensor weight = tensor.clone().set_requires_grad(true);
      (name[7] == 'a' ? a_ : b_).emplace_back(name.substr(7), weight);
    }
  }

  NamedTensors operator()() {
    optim::SGD sgd(a_, {.lr = 0.1, .momentum = 0.9});
    optim::AdamW adamw(b_, {.lr = 1e-2});
    for (int step = 0; step < steps_; ++step) {
      sgd.zero_grad();
      adamw.zero_grad();
      const Tree losses = scaler_.scale(Tree(Tree::List{loss(a_, step), loss(b_, step)}));
      for (const Tree& one : losses.list()) one.tensor().backward();
      if (step % 2 == 0) {
        scaler_.unscale_(sgd);
        optim::clip_grad_norm_(a_, 0.5);
      }
      trace_.taken_a.push_back(scaler_.step(sgd) ? 1 : 0);
      trace_.taken_b.push_back(step % 20 != 17 && scaler_.step(adamw) ? 1 : 0);
      step == 60 ? scaler_.update(3000.0) : scaler_.update();
      note(step);
      if (step == 100) {
        amp::GradScaler next;
        next.load_state_dict(scaler_.state_dict());
        scaler_ = std::move(next);
      }
    }
    results_.emplace_back("scale", vector(trace_.scale));
    results_.emplace_back("tracker", vector(trace_.tracker));
    results_.emplace_back("taken.a", vector(trace_.taken_a));
    results_.emplace_back("taken.b", vector(trace_.taken_b));
    return results_;
  }

 private:
  at::Tensor loss(const NamedTensors& parameters, int step) const {
    at::Tensor sum;
    for (const auto& [name, weight] : parameters) {
      const at::Tensor one =
          (weight * recorded_.at("gradient." + std::to_string(step) + "." + name)).sum();
      sum = sum.defined() ? sum + one : one;
    }
    return sum;
  }

  void note(int step) {
    const Tree state = scaler_.state_dict();
    trace_.scale.push_back(state.at("scale").number());
    trace_.tracker.push_back(static_cast<double>(state.at("_growth_tracker").integer()));
    for (const NamedTensors& parameters : {a_, b_}) {
      for (const auto& [name, weight] : parameters)
        results_.emplace_back("weight." + std::to_string(step) + "." + name,
                              weight.detach().clone());
    }
  }

  int steps_;
  amp::GradScaler scaler_;
  std::map<std::string, at::Tensor> recorded_;
  NamedTensors a_, b_, results_;
  Trace trace_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  try {
    std::map<std::string, double> settings;
    for (int i = 3; i < argc; ++i) {
      const std::string setting = argv[i];
      const size_t equals = setting.find('=');
      settings[setting.substr(0, equals)] = std::stod(setting.substr(equals + 1));
    }
    checkpoint::write_safetensors(argv[2], Run(argv[1], settings)());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
