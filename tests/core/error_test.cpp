#include "bellows/core/error.h"

#include <cerrno>
#include <type_traits>

#include <gtest/gtest.h>

#include "bellows/core/exit_code.h"

namespace bellows {
namespace {

TEST(ErrorTest, FileErrorNamesFileOperationAndReason) {
  const FileError error("/data/a.bin", "write", ENOSPC);
  EXPECT_STREQ(error.what(), "/data/a.bin: write: No space left on device");
  EXPECT_EQ(error.path(), "/data/a.bin");
  EXPECT_EQ(error.operation(), "write");
  EXPECT_EQ(error.code(), ENOSPC);
}

TEST(ErrorTest, CorruptFileErrorNamesFileFirst) {
  const CorruptFileError error("a.safetensors", "got 3 bytes, expected 8");
  EXPECT_STREQ(error.what(), "a.safetensors: got 3 bytes, expected 8");
  EXPECT_EQ(error.path(), "a.safetensors");
}

TEST(ErrorTest, EveryErrorIsCaughtAsBellowsError) {
  EXPECT_TRUE((std::is_base_of_v<Error, ValueError>));
  EXPECT_TRUE((std::is_base_of_v<Error, TimeoutError>));
  EXPECT_TRUE((std::is_base_of_v<Error, NonFiniteError>));
  EXPECT_TRUE((std::is_base_of_v<EnvironmentError, FileError>));
  EXPECT_TRUE((std::is_base_of_v<EnvironmentError, CorruptFileError>));
  EXPECT_TRUE((std::is_base_of_v<std::runtime_error, Error>));
}

TEST(ErrorTest, ExitCodeIsThatOfTheKindAlsoWhereADamagedFileStandsBehindIt) {
  const auto code_of = [](auto thrower) {
    try {
      thrower();
    } catch (const std::exception& error) {
      return exit_code(error);
    }
    return ExitCode::done;
  };
  EXPECT_EQ(code_of([] { throw ValueError("v"); }), ExitCode::usage);
  EXPECT_EQ(code_of([] { throw CorruptFileError("a", "b"); }), ExitCode::environment);
  EXPECT_EQ(code_of([] { throw Error("e"); }), ExitCode::failed);
  const auto behind = [](auto cause) {
    return [cause] {
      try {
        throw cause;
      } catch (...) {
        std::throw_with_nested(Error("sample 3"));
      }
    };
  };
  EXPECT_EQ(code_of(behind(CorruptFileError("a", "b"))), ExitCode::environment);
  EXPECT_EQ(code_of(behind(ValueError("v"))), ExitCode::failed);
}

}  // namespace
}  // namespace bellows
