#include "bellows/device/seed.h"

#include <cstdlib>
#include <gmock/gmock.h>

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(SeedTest, TheSameSeedGivesTheSameDraws) {
  seed_everything(7);
  const at::Tensor first = at::rand({100});
  const at::Tensor second = at::rand({100});
  seed_everything(7);
  EXPECT_TRUE(at::equal(at::rand({100}), first));
  seed_everything(8);
  EXPECT_FALSE(at::equal(at::rand({100}), first));
  EXPECT_FALSE(at::equal(first, second));
}

TEST(RandomStateTest, ALoadedStateContinuesTheDraws) {
  seed_everything(7);
  at::rand({13});
  const Tree saved = RandomState().state_dict();
  const at::Tensor expected = at::rand({100});
  at::rand({5});
  RandomState().load_state_dict(saved);
  EXPECT_TRUE(at::equal(at::rand({100}), expected));
}

TEST(RandomStateTest, StatesOfDevicesThatAreNotHereAreLeftOut) {
  Tree saved = RandomState().state_dict();
  saved.dict()["cuda:99"] = at::zeros({16}, at::kByte);
  const at::Tensor expected = at::rand({10});
  RandomState().load_state_dict(saved);
  EXPECT_TRUE(at::equal(at::rand({10}), expected));
}

TEST(RandomStateTest, WhatDoesNotFitIsNamedAndNothingChanges) {
  const auto message_of = [](const Tree& state) -> std::string {
    try {
      RandomState().load_state_dict(state);
    } catch (const ValueError& error) {
      return error.what();
    }
    return "no error";
  };
  const Tree now = RandomState().state_dict();
  EXPECT_THAT(message_of(Tree(3)), HasSubstr("expected a dict"));
  EXPECT_THAT(message_of(Tree(Tree::Dict{{"tpu", at::zeros({1})}})),
              AllOf(HasSubstr("cpu is missing"), HasSubstr("tpu is unexpected")));
  EXPECT_THAT(message_of(Tree(Tree::Dict{{"cpu", 3}})), HasSubstr("cpu is a int"));
  EXPECT_THAT(message_of(Tree(Tree::Dict{{"cpu", at::zeros({3}, at::kByte)}})),
              HasSubstr("cpu expected 5056 bytes"));
  EXPECT_TRUE(at::equal(RandomState().state_dict().at("cpu").tensor(), now.at("cpu").tensor()));
}

TEST(DeterminismTest, TheSwitchSetsLibTorchAndCublasAndCanBeUndone) {
  ::unsetenv("CUBLAS_WORKSPACE_CONFIG");
  at::globalContext().setBenchmarkCuDNN(true);
  set_deterministic(true);
  EXPECT_TRUE(deterministic());
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
  EXPECT_TRUE(at::globalContext().deterministicCuDNN());
  EXPECT_FALSE(at::globalContext().benchmarkCuDNN());
  EXPECT_STREQ(::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
  set_deterministic(false);
  EXPECT_FALSE(deterministic());
  EXPECT_FALSE(at::globalContext().deterministicCuDNN());
}

TEST(DeterminismTest, TheUsersOwnCublasSettingStays) {
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8", 1);
  set_deterministic(true);
  set_deterministic(false);
  EXPECT_STREQ(::getenv("CUBLAS_WORKSPACE_CONFIG"), ":16:8");
}

}  // namespace
}  // namespace bellows
