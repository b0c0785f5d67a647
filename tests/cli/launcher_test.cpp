// `bellows` itself: finding LibTorch and its commands.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tests/cli/bellows_program.h"

namespace bellows::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(BellowsProgramTest, LinksNoLibTorchNorStandardLibraryOfCxx) {
  const auto result = run({"ldd", BELLOWS_PROGRAM});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("torch")));
  EXPECT_THAT(result.out, Not(HasSubstr("c10")));
}

TEST(BellowsProgramTest, VersionAndHelpWorkWithoutLibTorch) {
  const std::map<std::string, std::string> nowhere{{"LIBTORCH", "/nowhere"}};
  const auto version = run({BELLOWS_PROGRAM, "--version"}, nowhere);
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out, "bellows " BELLOWS_VERSION "\n");
  const auto help = run({BELLOWS_PROGRAM, "--help"}, nowhere);
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("train"));
  EXPECT_THAT(help.out, HasSubstr("doctor"));
}

TEST(BellowsProgramTest, NoCommandPrintsHelpAndFails) {
  const auto result = bellows({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("Usage"));
}

TEST(BellowsProgramTest, UnknownCommandAndOptionNameTheNearest) {
  const auto command = bellows({"trian"});
  EXPECT_EQ(command.exit_code, 2);
  EXPECT_THAT(command.err, HasSubstr("unknown command 'trian'; did you mean 'train'?"));
  const auto option = bellows({"--verson"});
  EXPECT_EQ(option.exit_code, 2);
  EXPECT_THAT(option.err, HasSubstr("did you mean '--version'?"));
}

TEST(BellowsProgramTest, WithoutLibTorchTheErrorListsWhereItLooked) {
  const auto result = run({BELLOWS_PROGRAM, "models"}, {{"LIBTORCH", "/nowhere"}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("environment variable LIBTORCH: /nowhere"));
  EXPECT_THAT(result.err, HasSubstr("--libtorch"));
}

TEST(BellowsProgramTest, ALibTorchOfAnotherMinorVersionIsRefusedWithBoth) {
  const TemporaryFolder folder;
  std::filesystem::create_directory_symlink(std::filesystem::path(TEST_LIBTORCH) / "lib",
                                            folder / "lib");
  std::ofstream(folder / "build-version") << "2.1.2\n";
  const auto result = run({BELLOWS_PROGRAM, "--libtorch", folder.path().string(), "models"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("is LibTorch 2.1.2, but this Bellows was built with 2."));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_THAT(run({BELLOWS_PROGRAM, "--libtorch", folder.path().string(), "doctor"}).out,
              HasSubstr("unfit"));
}

TEST(BellowsProgramTest, OneOfAnotherMinorVersionInTheCurrentFolderIsPassedOver) {
  const TemporaryFolder folder;
  const auto torch = folder / ".venv/lib/python3.11/site-packages/torch";
  std::filesystem::create_directories(torch);
  std::filesystem::create_directory_symlink(std::filesystem::path(TEST_LIBTORCH) / "lib",
                                            torch / "lib");
  std::ofstream(torch / "version.py") << "__version__ = '2.1.2'\n";
  const auto result = run({BELLOWS_PROGRAM, "models"}, {{"LIBTORCH", ""}}, folder.path());
  EXPECT_TRUE(result.exit_code == 0 ||
              result.err.find("2.1.2, but this Bellows") != std::string::npos)
      << result.err;
}

TEST(BellowsProgramTest, LibTorchOptionWinsOverTheEnvironment) {
  EXPECT_EQ(
      run({BELLOWS_PROGRAM, "--libtorch", TEST_LIBTORCH, "models"}, {{"LIBTORCH", "/nowhere"}})
          .exit_code,
      0);
  const auto wrong =
      run({BELLOWS_PROGRAM, "--libtorch=/elsewhere", "models"}, {{"LIBTORCH", TEST_LIBTORCH}});
  EXPECT_EQ(wrong.exit_code, 3);
  EXPECT_THAT(wrong.err, HasSubstr("--libtorch: /elsewhere"));
}

/// A copy of the programs in a folder of its own, so that no build folder is near.
class MovedProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto bin = folder_.path() / "prefix" / "bin";
    std::filesystem::create_directories(bin);
    for (const char* name : {"bellows", "bellows-torch"}) {
      std::filesystem::copy_file(std::filesystem::path(BELLOWS_PROGRAM).parent_path() / name,
                                 bin / name);
    }
    program_ = (bin / "bellows").string();
  }
  ProcessResult models() {
    return run({"env", "-u", "LIBTORCH", program_, "models"}, {}, folder_.path());
  }
  TemporaryFolder folder_;
  std::string program_;
};

TEST_F(MovedProgramTest, ListsEveryPlaceInOrder) {
  const auto result = models();
  EXPECT_EQ(result.exit_code, 3);
  const auto beside = result.err.find("beside the program");
  const auto configured = result.err.find("installed configuration");
  const auto venv = result.err.find(".venv of the current folder");
  ASSERT_NE(venv, std::string::npos) << result.err;
  EXPECT_LT(beside, configured);
  EXPECT_LT(configured, venv);
}

TEST_F(MovedProgramTest, FindsLibTorchBesideTheProgram) {
  std::filesystem::create_directory_symlink(TEST_LIBTORCH, folder_.path() / "prefix" / "libtorch");
  EXPECT_EQ(models().exit_code, 0) << models().err;
}

TEST_F(MovedProgramTest, FindsLibTorchByTheInstalledConfiguration) {
  std::filesystem::create_directories(folder_.path() / "prefix" / "etc" / "bellows");
  std::ofstream(folder_.path() / "prefix" / "etc" / "bellows" / "libtorch")
      << TEST_LIBTORCH << "\n";
  EXPECT_EQ(models().exit_code, 0) << models().err;
}

TEST_F(MovedProgramTest, FindsLibTorchInTheVirtualEnvironmentHere) {
  const auto site = folder_.path() / ".venv" / "lib" / "python3.11" / "site-packages";
  std::filesystem::create_directories(site);
  std::filesystem::create_directory_symlink(TEST_LIBTORCH, site / "torch");
  EXPECT_EQ(models().exit_code, 0) << models().err;
}

TEST_F(MovedProgramTest, WithoutBellowsTorchItSaysWhatIsMissing) {
  std::filesystem::remove(std::filesystem::path(program_).parent_path() / "bellows-torch");
  const auto result = run({program_, "models"}, {{"LIBTORCH", TEST_LIBTORCH}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("bellows-torch"));
}

}  // namespace
}  // namespace bellows::testing
