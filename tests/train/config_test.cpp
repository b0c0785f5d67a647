#include "bellows/train/config.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/support/process.h"

namespace bellows::train {
namespace {

using ::testing::HasSubstr;

class ConfigTest : public ::testing::Test {
 protected:
  std::filesystem::path file(const std::string& text) {
    std::ofstream(folder_ / "c.toml") << text;
    return folder_ / "c.toml";
  }
  std::string error_of(const std::string& text) {
    try {
      Config::load(file(text));
    } catch (const ValueError& error) {
      return error.what();
    }
    return "no error";
  }
  static std::string error_of_set(const std::string& assignment) {
    try {
      Config().set(assignment);
    } catch (const ValueError& error) {
      return error.what();
    }
    return "no error";
  }
  testing::TemporaryFolder folder_;
};

TEST_F(ConfigTest, ReadsEveryKindOfValue) {
  Config config =
      Config::load(file("[run]\nname = 'a'\nepochs = 3\ndeterministic = true\n[optim]\nlr = "
                        "1e-3\nbetas = [0.9, 1]\n[model]\nhidden = [1, 2]\n"));
  EXPECT_EQ(config.table("run").get<std::string>("name", ""), "a");
  EXPECT_EQ(config.table("run").get<int64_t>("epochs", 0), 3);
  EXPECT_TRUE(config.table("run").get<bool>("deterministic", false));
  EXPECT_EQ(config.table("optim").get<double>("lr", 0), 1e-3);
  EXPECT_EQ(config.table("optim").get<std::vector<double>>("betas", {}),
            (std::vector<double>{0.9, 1.0}));
  EXPECT_EQ(config.table("model").get<std::vector<int64_t>>("hidden", {}),
            (std::vector<int64_t>{1, 2}));
}

TEST_F(ConfigTest, BadTomlNamesFileAndLine) {
  EXPECT_THAT(error_of("[run]\nname = \n"), HasSubstr("c.toml:2: "));
  EXPECT_THAT(error_of("[run]\n[# x\n"), HasSubstr("c.toml:2: ")) << "toml++ asserts this";
}

TEST_F(ConfigTest, UnknownTableNamesTheNearest) {
  EXPECT_THAT(error_of("[run]\n[optm]\nlr = 1.0\n"),
              HasSubstr("c.toml:2: unknown table [optm]; did you mean [optim]?"));
}

TEST_F(ConfigTest, KeyOutsideOfATableIsRefused) {
  EXPECT_THAT(error_of("epochs = 3\n"),
              HasSubstr("c.toml:1: key epochs stands outside of a table"));
}

TEST_F(ConfigTest, NestedTablesAndMixedListsAreRefused) {
  EXPECT_THAT(error_of("[model]\nx = {a = 1}\n"),
              HasSubstr("c.toml:2: model.x: expected true or false"));
  EXPECT_THAT(error_of("[model]\nx = [1, 'a']\n"), HasSubstr("model.x: expected"));
  EXPECT_THAT(error_of("[model]\nx = 2026-01-01\n"), HasSubstr("model.x: expected"));
}

TEST_F(ConfigTest, UnknownKeyIsReportedWithItsLineAndTheNearestKey) {
  Config config = Config::load(file("[run]\nepocs = 3\n"));
  config.table("run").get<int64_t>("epochs", 1);
  try {
    config.reject_unknown();
    FAIL() << "no error";
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("c.toml:2: unknown key run.epocs; did you mean run.epochs?"));
  }
}

TEST_F(ConfigTest, SetWinsOverTheFileAndTheLastSetWins) {
  Config config = Config::load(file("[optim]\nlr = 1e-3\n"));
  config.set("optim.lr=3e-4");
  config.set("optim.lr=0.5");
  EXPECT_EQ(config.table("optim").get<double>("lr", 0), 0.5);
}

TEST_F(ConfigTest, SetTakesBareWordsAsStringsAndTomlAsValues) {
  Config config;
  config.set("run.device=cuda:1");
  config.set("run.name=a-run.2");
  config.set("data.root=/tmp/x=y");
  config.set("model.hidden=[8, 9]");
  config.set("run.deterministic=true");
  EXPECT_EQ(config.table("run").get<std::string>("device", ""), "cuda:1");
  EXPECT_EQ(config.table("run").get<std::string>("name", ""), "a-run.2");
  EXPECT_EQ(config.table("data").get<std::string>("root", ""), "/tmp/x=y");
  EXPECT_EQ(config.table("model").get<std::vector<int64_t>>("hidden", {}),
            (std::vector<int64_t>{8, 9}));
  EXPECT_TRUE(config.table("run").get<bool>("deterministic", false));
}

TEST_F(ConfigTest, MalformedSetIsQuoted) {
  for (const char* bad : {"optim.lr", "lr=3", "=3", "optim.=3", ".lr=3", "optim.lr=[1",
                          "optim.lr=1\n[run]\nname=2", "optim.lr={a=1}"}) {
    EXPECT_THAT(error_of_set(bad), HasSubstr(std::string("--set ") + bad)) << bad;
  }
  EXPECT_THAT(error_of_set("optm.lr=3"), HasSubstr("did you mean [optim]?"));
}

TEST_F(ConfigTest, ResolvedReadsBackToTheSame) {
  Config config;
  config.set("run.name=\"a \\\"b\\\" ü\"");
  config.set("optim.lr=0.1");
  config.table("run").get<std::string>("name", "");
  config.table("optim").get<double>("lr", 0);
  config.table("optim").get<std::vector<double>>("betas", {0.9, 0.999});
  const std::string text = config.resolved();
  Config again = Config::load(file(text));
  again.table("run").get<std::string>("name", "");
  again.table("optim").get<double>("lr", 0);
  again.table("optim").get<std::vector<double>>("betas", {});
  again.reject_unknown();
  EXPECT_EQ(again.resolved(), text);
  EXPECT_THAT(text, HasSubstr("lr = 0.1\n"));
}

TEST_F(ConfigTest, AbsentFileIsAFileError) {
  EXPECT_THROW(Config::load(folder_ / "none.toml"), FileError);
}

}  // namespace
}  // namespace bellows::train
