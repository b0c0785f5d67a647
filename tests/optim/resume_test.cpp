// Every optimizer, ours and LibTorch's: saved, then loaded into one made with the defaults, it has
// all options of the saved one and goes on bit by bit; in another order, on another device too.
#include <functional>
#include <map>
#include <ostream>
#include <string>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "bellows/core/error.h"
#include "bellows/device/sim.h"
#include "bellows/nn/model.h"
#include "bellows/optim/adadelta.h"
#include "bellows/optim/adafactor.h"
#include "bellows/optim/adagrad.h"
#include "bellows/optim/adam.h"
#include "bellows/optim/adamax.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/asgd.h"
#include "bellows/optim/lamb.h"
#include "bellows/optim/lars.h"
#include "bellows/optim/lbfgs.h"
#include "bellows/optim/lion.h"
#include "bellows/optim/muon.h"
#include "bellows/optim/nadam.h"
#include "bellows/optim/radam.h"
#include "bellows/optim/rmsprop.h"
#include "bellows/optim/rprop.h"
#include "bellows/optim/sgd.h"

namespace bellows::optim {
namespace {

namespace lib = torch::optim;
constexpr Implementation kForeach = Implementation::foreach;

/// Three parameters, in two groups {a, b} and {c}, or {c} and {b, a} where `turned`.
struct Weights {
  at::Tensor a = at::arange(6, at::kFloat).reshape({2, 3}).set_requires_grad(true);
  at::Tensor b = at::full({4}, 2.0).set_requires_grad(true);
  at::Tensor c = at::full({3}, -1.0).set_requires_grad(true);

  NamedTensors names() const { return {{"a", a}, {"b", b}, {"c", c}}; }
  std::vector<NamedTensors> groups(bool turned) const {
    return turned ? std::vector<NamedTensors>{{{"c", c}}, {{"b", b}, {"a", a}}}
                  : std::vector<NamedTensors>{{{"a", a}, {"b", b}}, {{"c", c}}};
  }
  at::Tensor backward() const {
    for (const auto& [name, tensor] : names()) tensor.mutable_grad().reset();
    const at::Tensor loss = a.sin().sum() + b.square().sum() + c.pow(4).sum();
    loss.backward();
    return loss;
  }
};

/// An optimizer, with what it adapts.
struct Made {
  std::shared_ptr<lib::Optimizer> adapted;
  std::shared_ptr<Optimizer> optimizer;

  void step(const Weights& weights) const {
    optimizer->step([&] { return weights.backward(); });
  }
};

/// Options for group 0 and 1, given to `make`; no options: the defaults.
struct Kind {
  const char* name;
  std::function<Made(const Weights&, bool configured, bool turned)> make;
};

template <class O, class OptimizerOptions>
Kind ours(const char* name, OptimizerOptions first, OptimizerOptions second) {
  return {name, [=](const Weights& weights, bool configured, bool turned) {
            std::vector<ParamGroup<OptimizerOptions>> groups;
            for (const NamedTensors& parameters : weights.groups(turned)) {
              groups.push_back({parameters, {}});
              if (configured) groups.back().options = groups.size() == 1 ? first : second;
            }
            return Made{nullptr, std::make_shared<O>(groups)};
          }};
}

template <class O, class OptimizerOptions>
Kind libtorchs(const char* name, OptimizerOptions defaults, OptimizerOptions first,
               OptimizerOptions second) {
  return {name, [=](const Weights& weights, bool configured, bool turned) {
            std::vector<lib::OptimizerParamGroup> groups;
            for (const NamedTensors& parameters : weights.groups(turned)) {
              std::vector<at::Tensor> tensors;
              for (const auto& [parameter, tensor] : parameters) tensors.push_back(tensor);
              const OptimizerOptions& own = groups.empty() ? first : second;
              groups.emplace_back(tensors,
                                  std::make_unique<OptimizerOptions>(configured ? own : defaults));
            }
            auto optimizer = std::make_shared<O>(groups, defaults);
            return Made{optimizer, adapt(*optimizer, weights.names())};
          }};
}

Kind lbfgs() {  // one group only
  return {"lbfgs", [](const Weights& weights, bool configured, bool turned) {
            const auto options =
                lib::LBFGSOptions(0.5).max_iter(4).history_size(3).line_search_fn("strong_wolfe");
            std::vector<at::Tensor> tensors{weights.a, weights.b, weights.c};
            if (turned && configured) std::swap(tensors[0], tensors[2]);
            auto optimizer =
                std::make_shared<lib::LBFGS>(tensors, configured ? options : lib::LBFGSOptions());
            return Made{optimizer, adapt(*optimizer, weights.names())};
          }};
}

// Another order of the parameters would change the last bits.
Kind our_lbfgs() {
  return {"ours_lbfgs", [](const Weights& weights, bool configured, bool) {
            LBFGSOptions options;
            if (configured) {
              options = {.lr = 0.5, .max_iter = 4, .history_size = 3};
              options.line_search_fn = "strong_wolfe";
            }
            return Made{nullptr, std::make_shared<LBFGS>(weights.names(), options)};
          }};
}

// Muon takes matrices alone; `b` and `c` are left as they are.
Kind our_muon() {
  return {"ours_muon", [](const Weights& weights, bool configured, bool) {
            MuonOptions options;
            if (configured) options = {.lr = 0.1, .momentum = 0.5, .ns_steps = 3};
            return Made{nullptr, std::make_shared<Muon>(NamedTensors{{"a", weights.a}}, options)};
          }};
}

std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.name;
}

class OptimizerResumeTest : public ::testing::TestWithParam<Kind> {
 protected:
  // Before the first backward, which settles what devices there are.
  static void SetUpTestSuite() { sim::enable({.devices = 1}); }
};

/// By parameter: the options of its group, as text.
std::map<std::string, std::string> options_of(const Optimizer& optimizer) {
  std::map<std::string, std::string> options;
  const Tree state = optimizer.state_dict();
  for (const Tree& group : state.at("groups").list()) {
    std::string text;
    for (const auto& [key, value] : group.dict()) {
      if (key == "params") continue;
      text += key + "=";
      if (value.is_bool()) text += value.boolean() ? "true" : "false";
      if (value.is_int() || value.is_double()) text += std::to_string(value.number() * 1e6);
      if (value.is_string()) text += value.string();
      if (value.is_list())
        for (const Tree& one : value.list())
          text += one.empty() ? "none " : std::to_string(one.number() * 1e6) + " ";
      text += "; ";
    }
    for (const Tree& name : group.at("params").list()) options[name.string()] = text;
  }
  return options;
}

Tree copied(const Tree& state) {
  return state.map([](const at::Tensor& tensor) { return tensor.clone(); });
}

TEST_P(OptimizerResumeTest, LoadedIntoDefaultsAndAnotherOrderItHasAllOptionsAndGoesOn) {
  const Kind& kind = GetParam();
  const Weights straight, stopped;
  const Made unbroken = kind.make(straight, true, false), first = kind.make(stopped, true, false);
  for (int step = 0; step < 3; ++step) unbroken.step(straight);
  for (int step = 0; step < 3; ++step) first.step(stopped);
  const Made second = kind.make(stopped, /*configured=*/false, /*turned=*/true);
  ASSERT_NE(options_of(*second.optimizer), options_of(*first.optimizer));
  second.optimizer->load_state_dict(copied(first.optimizer->state_dict()));
  EXPECT_EQ(options_of(*second.optimizer), options_of(*first.optimizer));
  for (int step = 0; step < 5; ++step) {
    unbroken.step(straight);
    second.step(stopped);
    EXPECT_TRUE(at::equal(stopped.a, straight.a)) << step;
    EXPECT_TRUE(at::equal(stopped.b, straight.b)) << step;
    EXPECT_TRUE(at::equal(stopped.c, straight.c)) << step;
  }
}

TEST_P(OptimizerResumeTest, StateOfADeviceIsLoadedOnTheCpuAndBack) {
  const Kind& kind = GetParam();
  const Weights straight, moving;
  const Made unbroken = kind.make(straight, true, false);
  Made now = kind.make(moving, true, false);
  for (int step = 0; step < 6; ++step) {
    const c10::Device device = step % 4 < 2 ? sim::device(0) : c10::Device(c10::kCPU);
    const Tree state = copied(now.optimizer->state_dict());
    for (const auto& [name, tensor] : moving.names()) tensor.mutable_grad().reset();
    nn::move_in_place(moving.names(), device);
    now = kind.make(moving, true, false);
    now.optimizer->load_state_dict(state);
    now.step(moving);
    unbroken.step(straight);
    EXPECT_TRUE(at::equal(moving.a.cpu(), straight.a)) << step;
    EXPECT_TRUE(at::equal(moving.c.cpu(), straight.c)) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, OptimizerResumeTest,
    ::testing::Values(
        ours<SGD, SGDOptions>("ours_sgd", {.lr = 3e-4, .momentum = 0.9, .weight_decay = 0.1},
                              {.lr = 3e-2, .momentum = 0.8, .nesterov = true, .maximize = true}),
        ours<AdamW, AdamWOptions>("ours_adamw",
                                  {.lr = 3e-4, .betas = {0.8, 0.99}, .weight_decay = 0.1},
                                  {.lr = 3e-2, .eps = 1e-6, .amsgrad = true}),
        ours<Adam, AdamOptions>("ours_adam", {.lr = 3e-4, .decoupled_weight_decay = true},
                                {.lr = 3e-2, .amsgrad = true, .implementation = kForeach}),
        ours<Adagrad, AdagradOptions>(
            "ours_adagrad", {.lr = 3e-2, .lr_decay = 0.1, .initial_accumulator_value = 0.2},
            {.lr = 0.1, .weight_decay = 0.1, .implementation = kForeach}),
        ours<RMSprop, RMSpropOptions>("ours_rmsprop", {.lr = 3e-4, .momentum = 0.9},
                                      {.lr = 3e-2, .alpha = 0.5, .centered = true}),
        ours<Adadelta, AdadeltaOptions>("ours_adadelta", {.lr = 0.3},
                                        {.lr = 0.5, .rho = 0.5, .maximize = true}),
        ours<Adamax, AdamaxOptions>("ours_adamax", {.lr = 3e-4},
                                    {.lr = 3e-2, .betas = {0.5, 0.7}, .weight_decay = 0.1}),
        ours<NAdam, NAdamOptions>(
            "ours_nadam", {.lr = 3e-4, .momentum_decay = 0.1},
            {.lr = 3e-2, .weight_decay = 0.1, .decoupled_weight_decay = true}),
        ours<RAdam, RAdamOptions>(
            "ours_radam", {.lr = 3e-4, .betas = {0.8, 0.9}},
            {.lr = 3e-2, .weight_decay = 0.1, .decoupled_weight_decay = true}),
        ours<Rprop, RpropOptions>("ours_rprop", {.lr = 3e-4}, {.lr = 3e-2, .etas = {0.3, 1.5}}),
        ours<ASGD, ASGDOptions>("ours_asgd", {.lr = 3e-3, .t0 = 2},
                                {.lr = 3e-2, .lambd = 0.1, .alpha = 0.5}),
        ours<Adafactor, AdafactorOptions>("ours_adafactor", {.lr = 3e-3},
                                          {.lr = 3e-2, .eps = {1e-5, 1e-2}, .maximize = true}),
        ours<Lion, LionOptions>("ours_lion", {.lr = 3e-4}, {.lr = 3e-2, .betas = {0.5, 0.6}}),
        ours<LAMB, LAMBOptions>("ours_lamb", {.lr = 3e-4}, {.lr = 3e-2, .betas = {0.5, 0.6}}),
        ours<LARS, LARSOptions>("ours_lars", {.lr = 3e-1},
                                {.lr = 1.0, .momentum = 0.5, .weight_decay = 0.1}),
        our_lbfgs(), our_muon(),
        libtorchs<lib::SGD>("sgd", lib::SGDOptions(1e-3),
                            lib::SGDOptions(3e-4).momentum(0.9).nesterov(true),
                            lib::SGDOptions(3e-2).momentum(0.8).dampening(0.1).weight_decay(0.1)),
        libtorchs<lib::Adam>("adam", lib::AdamOptions(),
                             lib::AdamOptions(3e-4).betas({0.8, 0.99}).amsgrad(true),
                             lib::AdamOptions(3e-2).weight_decay(0.1)),
        libtorchs<lib::AdamW>("adamw", lib::AdamWOptions(),
                              lib::AdamWOptions(3e-4).betas({0.8, 0.99}).amsgrad(true),
                              lib::AdamWOptions(3e-2).weight_decay(0.1).eps(1e-6)),
        libtorchs<lib::RMSprop>("rmsprop", lib::RMSpropOptions(),
                                lib::RMSpropOptions(3e-4).momentum(0.5).centered(true),
                                lib::RMSpropOptions(3e-2).alpha(0.9).weight_decay(0.1)),
        libtorchs<lib::Adagrad>("adagrad", lib::AdagradOptions(),
                                lib::AdagradOptions(3e-4).lr_decay(0.01),
                                lib::AdagradOptions(3e-2).weight_decay(0.1).eps(1e-6)),
        lbfgs()),
    [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace bellows::optim
