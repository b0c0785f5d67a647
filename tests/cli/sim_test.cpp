// The shipped program on simulated devices.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bellows/core/file.h"
#include "tests/cli/bellows_program.h"

namespace bellows::testing {
namespace {
namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::Not;

class SimCommand : public ::testing::Test {
 protected:
  ProcessResult train(const std::string& device,
                      std::map<std::string, std::string> environment = {},
                      std::vector<std::string> more = {}, const std::string& name = "run") {
    more.insert(more.end(), {"--device", device});
    return bellows(run_.words(std::move(more), name), std::move(environment));
  }
  std::string weights(const std::string& name) {
    return read_file(fs::path(run_.run_folder(name)) / "checkpoints/last/model.safetensors");
  }
  const SmallRun run_;
};

TEST_F(SimCommand, TrainingGivesTheWeightsOfTheCpu) {
  ASSERT_EQ(train("cpu", {}, {}, "cpu").exit_code, 0);
  const auto result = train("sim:1", {}, {}, "sim");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("device sim:1 (simulated, 8.0 GiB)"));
  EXPECT_EQ(weights("cpu"), weights("sim"));
  const auto summary =
      nlohmann::json::parse(read_file(fs::path(run_.run_folder("sim")) / "summary.json"));
  EXPECT_EQ(summary["device"], "sim:1");
  for (const auto& file : fs::recursive_directory_iterator(run_.run_folder("sim"))) {
    if (file.is_regular_file()) {
      EXPECT_THAT(read_file(file.path()), Not(HasSubstr("hpu"))) << file.path();
    }
  }
}

TEST_F(SimCommand, ARunGoesOnOnAnotherKindOfDevice) {
  ASSERT_EQ(train("cpu", {}, {}, "whole").exit_code, 0);
  ASSERT_EQ(train("sim:0", {}, {"--set", "run.epochs=1"}).exit_code, 0);
  const auto result = train("cpu", {}, {"--resume", "auto"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(weights("whole"), weights("run"));
}

TEST_F(SimCommand, EvaluationRunsThereToo) {
  ASSERT_EQ(train("cpu").exit_code, 0);
  const auto cpu = bellows({"eval", run_.run_folder(), "--device", "cpu"});
  const auto sim = bellows({"eval", run_.run_folder(), "--device", "sim:2"});
  ASSERT_EQ(sim.exit_code, 0) << sim.err;
  EXPECT_THAT(sim.out, HasSubstr("on sim:2 (simulated"));
  EXPECT_EQ(cpu.out.substr(cpu.out.find("test_")), sim.out.substr(sim.out.find("test_")));
}

TEST_F(SimCommand, TheVariableMakesAutoTakeThem) {
  const auto result = train("auto", {{"BELLOWS_SIM_DEVICES", "2"}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("device sim:0 (simulated"));
}

TEST_F(SimCommand, TooLittleMemoryIsOneSentenceThatSaysWhatHeldIt) {
  const auto result =
      train("sim:1", {{"BELLOWS_SIM_MEMORY", "350KiB"}});  // parameters alone take 100 KiB
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("sim:1 is out of memory: tried to allocate"));
  EXPECT_THAT(result.err,
              HasSubstr("sim:1 held parameters 99.4 KiB, gradients 99.4 KiB, optimizer state "));
  EXPECT_THAT(result.err, Not(HasSubstr("hpu")));
  EXPECT_THAT(result.err, Not(HasSubstr("frame #")));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  const auto summary =
      nlohmann::json::parse(read_file(fs::path(run_.run_folder()) / "summary.json"));
  EXPECT_EQ(summary["status"], "failed");
  EXPECT_THAT(summary["error"], HasSubstr("out of memory"));
}

TEST_F(SimCommand, ABatchThatDoesNotFitIsComputedInParts) {
  const std::string config = (run_.folder() / "transformer.toml").string();
  std::ofstream(config) << "[run]\nseed = 3\nthreads = 1\n"
                           "[data]\ndataset = \"mnist\"\nroot = \""
                        << run_.data().string()
                        << "\"\nbatch_size = 64\nevaluation_batch_size = 16\n"
                           "[model]\nname = \"transformer\"\ndropout = 0.0\n";
  const auto train = [&](const std::string& name, const std::string& device,
                         std::vector<std::string> more) {
    more.insert(more.begin(),
                {"train", config, "--run", run_.run_folder(name), "--device", device});
    return bellows(std::move(more), {{"BELLOWS_SIM_MEMORY", "8MiB"}});
  };
  ASSERT_EQ(train("cpu", "cpu", {}).exit_code, 0);
  const auto result = train("sim", "sim:0", {});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("out of memory with a batch of 64: from now on each batch is "
                                    "computed in 2 parts"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  const auto summary = [&](const std::string& name) {
    return nlohmann::json::parse(read_file(fs::path(run_.run_folder(name)) / "summary.json"));
  };
  EXPECT_EQ(summary("sim")["steps"], summary("cpu")["steps"]);
  EXPECT_NEAR(summary("sim")["metrics"]["test_loss"], summary("cpu")["metrics"]["test_loss"], 1e-4);
  EXPECT_EQ(train("off", "sim:0", {"--set", "memory.recover=false"}).exit_code, 1);
}

TEST_F(SimCommand, TheLargestBatchIsFoundAndRuns) {
  const std::map<std::string, std::string> memory{{"BELLOWS_SIM_MEMORY", "2MiB"}};
  const auto found = bellows({"find-batch", run_.config(), "--device", "sim:0"}, memory);
  ASSERT_EQ(found.exit_code, 0) << found.err;
  const size_t at = found.out.rfind("data.batch_size=");
  ASSERT_NE(at, std::string::npos) << found.out;
  const int64_t size = std::stoll(found.out.substr(at + 16));
  const auto with = [&](int64_t batch, const std::string& name) {
    return train("sim:0", memory,
                 {"--set", "memory.recover=false", "--set", "data.evaluation_batch_size=16",
                  "--set", "data.batch_size=" + std::to_string(batch)},
                 name);
  };
  ASSERT_LT(size, 600) << "the data have 640 samples";
  EXPECT_EQ(with(size, "fits").exit_code, 0);
  EXPECT_EQ(with(size + size / 8, "too_large").exit_code, 1);
  EXPECT_EQ(
      bellows({"find-batch", run_.config(), "--device", "sim:0", "--search", "both"}).exit_code, 2);
  EXPECT_EQ(bellows({"find-batch", run_.config(), "--device", "sim:0"},
                    {{"BELLOWS_SIM_MEMORY", "150KiB"}})
                .exit_code,
            1);
}

TEST_F(SimCommand, AnEstimateIsThePeakThatIsSeen) {
  const auto estimate = bellows(
      {"estimate", run_.config(), "--set", "data.batch_size=256", "--device-memory", "24GiB"});
  ASSERT_EQ(estimate.exit_code, 0) << estimate.err;
  const auto number = [](const std::string& text, const std::string& before) {
    const size_t at = text.find(before);
    EXPECT_NE(at, std::string::npos) << text;
    return at == std::string::npos ? 0 : std::stod(text.substr(at + before.size()));
  };
  const auto seen = bellows(
      {"find-batch", run_.config(), "--device", "sim:0", "--start", "256", "--limit", "256"});
  ASSERT_EQ(seen.exit_code, 0) << seen.err;
  EXPECT_THAT(estimate.out, HasSubstr("MiB\n"));
  const double expected = number(seen.out, "batch 256: fits, at most ");
  EXPECT_NEAR(number(estimate.out, "peak     "), expected, 0.1 * expected);
  EXPECT_THAT(estimate.out, HasSubstr("bf16-true"));
  EXPECT_THAT(estimate.out, HasSubstr("fit into 24.0 GiB"));
  EXPECT_EQ(bellows({"estimate", run_.config(), "--device-memory", "much"}).exit_code, 2);
}

TEST_F(SimCommand, WhatIsNotThereIsAnEnvironmentErrorBeforeAnythingIsWritten) {
  auto result = train("sim:2", {{"BELLOWS_SIM_DEVICES", "2"}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("sim:2: there are 2 simulated devices"));
  result = train("cuda", {{"BELLOWS_SIM_DEVICES", "2"}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("CUDA is not used next to them"));
  EXPECT_FALSE(fs::exists(run_.run_folder()));
}

TEST_F(SimCommand, BadSettingsAreUsageErrors) {
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"BELLOWS_SIM_DEVICES", "0"},
                                                        {"BELLOWS_SIM_DEVICES", "many"},
                                                        {"BELLOWS_SIM_MEMORY", "4M"}}) {
    const auto result = train("sim:0", {{name, value}});
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(name + ": got '" + value + "'"));
  }
  for (const char* device : {"sim:x", "sim:-1", "sim:64", "smi:0"}) {
    const auto result = train(device);
    EXPECT_EQ(result.exit_code, 2) << device << ": " << result.err;
  }
  EXPECT_FALSE(fs::exists(run_.run_folder()));
}

TEST_F(SimCommand, TheDoctorListsThem) {
  const auto result =
      bellows({"doctor"}, {{"BELLOWS_SIM_DEVICES", "3"}, {"BELLOWS_SIM_MEMORY", "2GiB"}});
  ASSERT_EQ(result.exit_code, 0) << result.out;
  EXPECT_THAT(result.out, HasSubstr("sim:2             simulated, 2.0 GiB"));
  EXPECT_THAT(bellows({"doctor"}).out, Not(HasSubstr("sim:0")));
}

}  // namespace
}  // namespace bellows::testing
