// Where ranks' output goes, and what becomes of it.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <thread>

#include <gtest/gtest.h>

#include "bellows/core/file.h"
#include "tests/launch/program.h"

namespace bellows::testing {
namespace {
namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

TEST(LaunchOutputTest, OutputAndErrorsStayApart) {
  const auto result = launch_shell({"--nproc", "2"}, "echo out; echo err >&2");
  EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[rank 0] out", "[rank 1] out"));
  EXPECT_THAT(result.err, AllOf(HasSubstr("[rank 0] err\n"), HasSubstr("[rank 1] err\n")));
}

TEST(LaunchOutputTest, LinesOfManyRanksAreWholeAlsoInOnePipe) {
  // Both streams of four ranks end in one pipe, in lines of 1 to 9,000 letters.
  const std::string rank =
      "i=0; while [ $i -lt 60 ]; do printf \"%0$((i * 150 + 1))d\\n\" 0; "
      "printf \"%0$((i * 150 + 1))d\\n\" 0 >&2; i=$((i + 1)); done";
  const auto result = run(
      {"sh", "-c", "\"$0\" launch --nproc 4 -- sh -c '" + rank + "' 2>&1 | cat", BELLOWS_PROGRAM});
  std::vector<std::string> lines = lines_of(result.out);
  std::erase_if(lines,
                [](const std::string& line) { return line.starts_with("bellows launch: "); });
  ASSERT_THAT(lines, SizeIs(4 * 60 * 2));
  for (const auto& line : lines) {
    const size_t letters = line.size() - std::string("[rank 0] ").size();
    EXPECT_EQ(letters % 150, 1U) << line.substr(0, 100);
    EXPECT_EQ(line.find("rank", 8), std::string::npos) << line.substr(0, 100);
  }
}

TEST(LaunchOutputTest, AMissingLineFeedIsAddedOnTheConsoleAlone) {
  const TemporaryFolder folder;
  const auto result = launch_shell({"--log-dir", folder.path().string()}, "printf end");
  EXPECT_EQ(result.out, "[rank 0] end\n");
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (entry.path().filename() != "stdout.log") continue;
    EXPECT_EQ(read_file(entry.path()), "end");
  }
}

std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const auto path = entry.path().lexically_relative(folder);
    files.push_back(path.lexically_relative(*path.begin()).string() + ": " +
                    read_file(entry.path()));
  }
  return files;
}

TEST(LaunchOutputTest, RedirectsAndTeeGoToFilesAsWithTorchrun) {
  const TemporaryFolder folder;
  const auto result = launch_shell({"--nproc", "2", "--log-dir", folder.path().string(),
                                    "--rdzv-id", "job7", "-r", "0:1", "-t", "1:2"},
                                   "echo out; echo err >&2");
  EXPECT_EQ(result.out, "[rank 1] out\n");
  EXPECT_THAT(result.err, AllOf(HasSubstr("[rank 0] err\n"), HasSubstr("[rank 1] err\n")));
  EXPECT_THAT(files_below(folder.path()), UnorderedElementsAre("attempt_0/0/stdout.log: out\n",
                                                               "attempt_0/1/stderr.log: err\n"));
  EXPECT_TRUE(
      fs::directory_iterator(folder.path())->path().filename().string().starts_with("job7_"));
}

TEST(LaunchOutputTest, OnlyTheRanksAskedForAreShown) {
  const auto result = launch_shell({"--nproc", "3", "--local-ranks-filter", "0,2"}, "echo $RANK");
  EXPECT_THAT(lines_of(result.out), UnorderedElementsAre("[rank 0] 0", "[rank 2] 2"));
}

TEST(LaunchOutputTest, ThePrefixIsATemplate) {
  const auto result = launch_shell(
      {"--role", "trainer", "--log-line-prefix-template", "${role_name}${local_rank}/${rank}: "},
      "echo hi");
  EXPECT_EQ(result.out, "trainer0/0: hi\n");
}

TEST(LaunchOutputTest, AReaderThatLeavesDoesNotEndTheJob) {
  const TemporaryFolder folder;
  const std::string done = folder / "done";
  const auto result = run({"bash", "-c",
                           "\"$0\" launch -- sh -c 'yes | head -c 3000000; touch " + done +
                               "' | head -n 1; exit ${PIPESTATUS[0]}",
                           BELLOWS_PROGRAM});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[rank 0] y\n");
  EXPECT_TRUE(fs::exists(done));
}

TEST(LaunchOutputTest, AReaderThatDoesNotReadCannotKeepTheLauncherFromStopping) {
  // The pipe's reader sleeps: ranks wait, the launcher does not.
  Process process(
      {"bash", "-c",
       "exec 3> >(sleep 20 >/dev/null 2>&1); exec \"$0\" launch --shutdown-timeout 1 -- sh "
       "-c 'yes; exit 1' >&3",
       BELLOWS_PROGRAM});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  process.signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(std::chrono::seconds(10)).exit_code, 128 + SIGTERM);
}

TEST(LaunchOutputTest, AFullDiskIsSaidOnceAndTheJobGoesOn) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "attempt_0");
  const auto result = run({"sh", "-c",
                           "ulimit -f 8; \"$0\" launch --log-dir \"$1\" -t 1 -- sh -c "
                           "'yes | head -c 100000; echo; echo done' | tail -n 1",
                           BELLOWS_PROGRAM, folder.path().string()});
  EXPECT_EQ(result.out, "[rank 0] done\n") << result.err;
  const size_t said = result.err.find("File too large");
  ASSERT_NE(said, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("File too large", said + 1), std::string::npos) << result.err;
}

TEST(LaunchOutputTest, ALogFolderThatCannotBeMadeIsAnErrorBeforeTheStart) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  const std::string below = (folder / "file" / "logs").string();
  const auto result = launch_shell({"--log-dir", below}, "echo started");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr(below));
}

}  // namespace
}  // namespace bellows::testing
