#include <cmath>
#include <gmock/gmock.h>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"

namespace bellows::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

NamedTensors one_parameter() {
  return {{"w", at::ones({2}).set_requires_grad(true)}};
}

std::string error_of(Options options) {
  try {
    make_optimizer(options, one_parameter());
    options.reject_unknown();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

Options with(const std::string& name, const std::string& key, OptionValue value) {
  Options options("optim");
  options.set("name", name);
  options.set(key, std::move(value), "demo.toml:3");
  return options;
}

TEST(MakeOptimizerTest, ReadsEveryOptionOfSgd) {
  Options options("optim");
  options.set("name", "sgd");
  options.set("lr", 0.5);
  options.set("momentum", 0.9);
  options.set("weight_decay", 1e-4);
  options.set("nesterov", true);
  options.set("maximize", true);
  const auto optimizer = make_optimizer(options, one_parameter());
  options.reject_unknown();
  EXPECT_EQ(optimizer->name(), "SGD");
  const SGDOptions& read = dynamic_cast<SGD&>(*optimizer).options(0);
  EXPECT_EQ(read.lr, 0.5);
  EXPECT_EQ(read.momentum, 0.9);
  EXPECT_EQ(read.weight_decay, 1e-4);
  EXPECT_TRUE(read.nesterov);
  EXPECT_TRUE(read.maximize);
}

TEST(MakeOptimizerTest, ReadsEveryOptionOfAdamW) {
  Options options("optim");
  options.set("name", "AdamW");
  options.set("lr", 0.5);
  options.set("betas", std::vector<double>{0.8, 0.95});
  options.set("eps", 1e-6);
  options.set("weight_decay", 0.3);
  options.set("amsgrad", true);
  const auto optimizer = make_optimizer(options, one_parameter());
  options.reject_unknown();
  const AdamWOptions& read = dynamic_cast<AdamW&>(*optimizer).options(0);
  EXPECT_EQ(read.betas, (std::array<double, 2>{0.8, 0.95}));
  EXPECT_EQ(read.eps, 1e-6);
  EXPECT_EQ(read.weight_decay, 0.3);
  EXPECT_TRUE(read.amsgrad);
}

TEST(MakeOptimizerTest, ErrorsNameTheKeyAndItsOrigin) {
  EXPECT_THAT(error_of(with("sgd", "lr", -0.1)),
              AllOf(HasSubstr("demo.toml:3"), HasSubstr("optim.lr")));
  EXPECT_THAT(error_of(with("adamw", "lr", std::nan(""))), HasSubstr("optim.lr"));
  EXPECT_THAT(error_of(with("sgd", "momentum", -1.0)), HasSubstr("optim.momentum"));
  EXPECT_THAT(error_of(with("sgd", "nesterov", true)), HasSubstr("optim.nesterov"));
  EXPECT_THAT(error_of(with("adamw", "betas", std::vector<double>{0.9})), HasSubstr("optim.betas"));
  EXPECT_THAT(error_of(with("adamw", "betas", std::vector<double>{0.9, 1.0})),
              HasSubstr("expected two numbers from 0 to below 1"));
  EXPECT_THAT(error_of(with("adamw", "momentum", 0.9)), HasSubstr("optim.momentum"));
  EXPECT_THAT(error_of(with("adma", "lr", 0.1)),
              AllOf(HasSubstr("optim.name"), HasSubstr("adamw")));
  EXPECT_THAT(error_of(with("LBFGS", "lr", 0.1)),
              AllOf(HasSubstr("optim.name"), HasSubstr("step(closure)")));
  EXPECT_THAT(error_of(with("rprop", "etas", std::vector<double>{0.5, 0.9})),
              HasSubstr("optim.etas"));
  EXPECT_THAT(error_of(with("muon", "ns_steps", int64_t{100})), HasSubstr("optim.ns_steps"));
  EXPECT_THAT(error_of(with("adafactor", "eps", std::vector<double>{1e-3})),
              HasSubstr("expected two numbers"));
}

TEST(MakeOptimizerTest, AllNamesAreTaken) {
  for (const char* const name :
       {"Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "LAMB", "LARS",
        "Lion", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}) {
    Options options("optim");
    options.set("name", name);
    options.set("lr", 0.25);
    const auto optimizer =
        make_optimizer(options, {{"w", at::ones({2, 2}).set_requires_grad(true)}});
    options.reject_unknown();
    EXPECT_EQ(optimizer->name(), name);
    EXPECT_EQ(optimizer->lr(0), 0.25);
  }
}

TEST(MakeOptimizerTest, ImplementationIsAmongThoseThereAre) {
  Options options = with("adamw", "implementation", "single");
  const auto optimizer = make_optimizer(options, one_parameter());
  EXPECT_EQ(dynamic_cast<AdamW&>(*optimizer).options(0).implementation, Implementation::single);
  EXPECT_EQ(error_of(with("adagrad", "implementation", "fused")), "no error");
  EXPECT_THAT(error_of(with("rmsprop", "implementation", "fused")),
              AllOf(HasSubstr("optim.implementation"), HasSubstr("auto, foreach, single")));
  EXPECT_THAT(error_of(with("muon", "implementation", "foreach")),
              HasSubstr("optim.implementation"));
}

}  // namespace
}  // namespace bellows::optim
