#include "bellows/core/log.h"

#include <cstdlib>
#include <gmock/gmock.h>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/core/file.h"

namespace bellows {
namespace {

using ::testing::AllOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::Not;

// Runs `fn` at a level and gives what it wrote on standard error.
template <class Fn>
std::string written(log::Level level, Fn fn) {
  const log::Level before = log::level();
  log::set_level(level);
  ::testing::internal::CaptureStderr();
  fn();
  log::set_level(before);
  return ::testing::internal::GetCapturedStderr();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// warn_once remembers for the life of the process, and a test may run twice in it.
std::string unused_text() {
  static int count = 0;
  return "setting " + std::to_string(count++) + " has no effect";
}

void log_one_of_each() {
  log::debug("a debug line");
  log::info("an info line");
  log::warn("a warn line");
  log::error("an error line");
}

TEST(LogTest, LineHasTimeLevelAndText) {
  const std::string text = written(log::Level::info, [] { log::info("hello {} %s"); });
  EXPECT_TRUE(std::regex_match(
      text,
      std::regex(
          R"(\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\] \[bellows\] \[info\] hello \{\} %s\n)")))
      << text;
}

TEST(LogTest, LevelDecidesWhatIsWritten) {
  EXPECT_EQ(lines_of(written(log::Level::trace, log_one_of_each)).size(), 4u);
  EXPECT_EQ(lines_of(written(log::Level::info, log_one_of_each)).size(), 3u);
  EXPECT_EQ(lines_of(written(log::Level::error, log_one_of_each)).size(), 1u);
  EXPECT_EQ(written(log::Level::off, log_one_of_each), "");
}

TEST(LogTest, EnabledAgreesWithTheLevelInForce) {
  written(log::Level::warn, [] {
    EXPECT_EQ(log::level(), log::Level::warn);
    EXPECT_FALSE(log::enabled(log::Level::info));
    EXPECT_TRUE(log::enabled(log::Level::warn));
  });
}

TEST(LogTest, WarnOnceWritesEachTextOnce) {
  const std::string text = written(log::Level::warn, [] {
    const std::string unused = unused_text();
    for (int i = 0; i < 3; ++i) log::warn_once(unused);
    log::warn_once(unused_text());
  });
  EXPECT_EQ(lines_of(text).size(), 2u) << text;
}

TEST(LogTest, WarnOnceThatWasSilencedIsNotUsedUp) {
  const auto warn = [text = unused_text()] { log::warn_once(text); };
  EXPECT_EQ(written(log::Level::off, warn), "");
  EXPECT_THAT(written(log::Level::warn, warn), HasSubstr("no effect"));
}

TEST(LogTest, LinesOfManyThreadsStayWhole) {
  const std::string payload(500, 'x');
  const std::string text = written(log::Level::info, [&] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < 200; ++j) log::info(payload);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  const std::vector<std::string> lines = lines_of(text);
  EXPECT_EQ(lines.size(), 800u);
  for (const std::string& line : lines) {
    ASSERT_TRUE(line.starts_with("[20") && line.ends_with("[info] " + payload)) << line;
  }
}

TEST(LogTest, LevelMayChangeWhileOthersLog) {
  written(log::Level::off, [] {
    std::thread other([] {
      for (int i = 0; i < 100; ++i) log::debug("x");
    });
    for (int i = 0; i < 100; ++i) log::set_level(i % 2 == 0 ? log::Level::off : log::Level::error);
    other.join();
  });
}

// The environment is read once in a process, so each of these runs in a process of its own.
class LogDeathTest : public ::testing::Test {
 protected:
  LogDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  [[noreturn]] static void log_with(const char* word) {
    if (word == nullptr) {
      unsetenv("BELLOWS_LOG");
    } else {
      setenv("BELLOWS_LOG", word, 1);
    }
    log_one_of_each();
    log_one_of_each();
    std::exit(0);
  }
};

TEST_F(LogDeathTest, WarnIsTheDefault) {
  const auto expected = AllOf(HasSubstr("a warn line"), Not(HasSubstr("an info line")));
  EXPECT_EXIT(log_with(nullptr), ExitedWithCode(0), expected);
  EXPECT_EXIT(log_with(""), ExitedWithCode(0), expected);
}

TEST_F(LogDeathTest, EnvironmentSetsTheLevel) {
  EXPECT_EXIT(log_with("debug"), ExitedWithCode(0), HasSubstr("a debug line"));
  EXPECT_EXIT(log_with("error"), ExitedWithCode(0),
              AllOf(HasSubstr("an error line"), Not(HasSubstr("a warn line"))));
  EXPECT_EXIT(log_with("off"), ExitedWithCode(0), Not(HasSubstr("line")));
}

TEST_F(LogDeathTest, UnknownWordIsReportedOnceAndMeansWarn) {
  const std::string report =
      "BELLOWS_LOG: got \"loud\", expected trace, debug, info, warn, error or off";
  EXPECT_EXIT(log_with("loud"), ExitedWithCode(0),
              AllOf(HasSubstr(report), HasSubstr("a warn line"), Not(HasSubstr("an info line")),
                    ::testing::Not(::testing::ContainsRegex("loud(.|\n)*loud"))));
}

TEST_F(LogDeathTest, LevelSetByTheProgramWinsOverTheEnvironment) {
  const auto run = [] {
    setenv("BELLOWS_LOG", "debug", 1);
    log::set_level(log::Level::error);
    log_one_of_each();
    std::exit(0);
  };
  EXPECT_EXIT(run(), ExitedWithCode(0),
              AllOf(HasSubstr("an error line"), Not(HasSubstr("a warn line"))));
}

// A file stays for the life of the process, so it is added in a child.
TEST(LogFileDeathTest, FileTakesInfoAndAboveWhateverTheLevel) {
  GTEST_FLAG_SET(death_test_style, "fast");
  std::string name = ::testing::TempDir() + "bellows-log-XXXXXX";
  const std::filesystem::path directory = mkdtemp(name.data());
  const auto run = [&] {
    log::set_level(log::Level::error);
    log::add_file(directory / "rank-0.log");
    log_one_of_each();
    std::exit(0);
  };
  EXPECT_EXIT(run(), ExitedWithCode(0),
              AllOf(HasSubstr("an error line"), Not(HasSubstr("a warn line"))));
  const auto lines = lines_of(read_file(directory / "rank-0.log"));
  std::filesystem::remove_all(directory);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], HasSubstr("[info] an info line"));
}

TEST(LogTest, FileThatCannotBeWrittenIsNamed) {
  try {
    log::add_file("/dev/null/rank-0.log");
    FAIL() << "no error";
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/dev/null/rank-0.log"));
  }
}

}  // namespace
}  // namespace bellows
