// A save that fails, is killed, or loses what was not synced, at each of its calls in turn.
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <random>
#include <sys/wait.h>
#include <unistd.h>

#include "bellows/checkpoint/async_saver.h"
#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/directory.h"
#include "bellows/core/file.h"
#include "tests/checkpoint/fixture.h"
#include "tests/support/faulty_file_system.h"

namespace bellows::checkpoint {
namespace {

using testing::FaultyFileSystem;
using testing::ForgetfulFileSystem;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ShortWrites;

// The interrupted save is of a new step, or replaces the one that is there; and it is done by the
// caller, or in the background.
struct Interrupted {
  int64_t step;
  bool asynchronous;
};

class CheckpointFaultTest : public CheckpointTest,
                            public ::testing::WithParamInterface<Interrupted> {
 protected:
  // Starts from a root that holds step 1 with the value 1, the best so far.
  void begin() const {
    fs::remove_all(root());
    mark_best(root(), save_run(1, 1));
  }
  // What a run does at the end of an epoch: save, mark the best, keep only the last.
  void interrupted_save() const {
    const FakeRun run(2);
    const auto after = [&](const fs::path& directory) {
      mark_best(root(), directory);
      keep_last(root(), 1);
    };
    if (GetParam().asynchronous) {
      AsyncSaver saver;
      saver.save(root(), GetParam().step, run.model(), run.parts(), after);
      saver.wait();
    } else {
      after(save(root(), GetParam().step, run.model(), run.parts()));
    }
  }

  // The old or the new checkpoint is found, whole, by a reader that repairs nothing; then a further
  // save succeeds, and nothing is left over.
  void expect_sound(int n) const {
    const auto found = latest(root(), Check::contents);
    ASSERT_TRUE(found.has_value()) << "call " << n;
    const FakeRun run = load_run(*found);
    EXPECT_TRUE(run.is(1) || run.is(2)) << "call " << n;
    for (const fs::path& directory : candidates(root())) {
      if (directory.filename().string().starts_with('.')) continue;
      EXPECT_EQ(fault_of(directory), "") << "call " << n;
      const FakeRun whole = load_run(directory);
      EXPECT_TRUE(whole.is(1) || whole.is(2)) << "call " << n << ": " << directory;
    }
    save_run(3, 3);
    EXPECT_TRUE(load_run(root() / "last").is(3)) << "call " << n;
    EXPECT_EQ(error_of([&] { load_run(root() / "best"); }), "no error") << "call " << n;
    EXPECT_GE(list(root()).size(), 2U) << "call " << n;
    for (const std::string& name : entries()) {
      EXPECT_THAT(name, Not(HasSubstr(".step"))) << "call " << n;
    }
  }

  // In a process of its own, which ends at call n; false when the save was over before.
  // Otherwise `after` is called at its end.
  bool save_is_killed(
      FileSystem& faulty, const std::function<void()>& after = [] {}) const {
    const pid_t child = ::fork();
    if (child == 0) {
      const ScopedFileSystem scope(faulty);
      interrupted_save();
      after();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    return WEXITSTATUS(status) == 9;
  }
};

TEST_P(CheckpointFaultTest, EveryFailingCallIsReportedAndLeavesAWholeCheckpoint) {
  for (const int code : {ENOSPC, EIO}) {
    int n = 0;
    for (bool reached = true; reached; ++n) {
      begin();
      FaultyFileSystem faulty(n, [&] { return code; });
      std::string error;
      {
        const ScopedFileSystem scope(faulty);
        error = error_of([&] { interrupted_save(); });
      }
      reached = faulty.reached();
      if (reached && error != "no error") {
        EXPECT_THAT(error, HasSubstr(root().string())) << "call " << n;
        EXPECT_THAT(error, HasSubstr(::strerror(code))) << "call " << n;
      }
      EXPECT_EQ(error_of([&] { load_run(root() / "last"); }), "no error") << "call " << n;
      expect_sound(n);
    }
    EXPECT_GT(n, 15);
  }
}

TEST_P(CheckpointFaultTest, InterruptedCallsAreRepeated) {
  int n = 0;
  for (bool reached = true; reached; ++n) {
    begin();
    FaultyFileSystem faulty(n, [] { return EINTR; });
    {
      const ScopedFileSystem scope(faulty);
      EXPECT_EQ(error_of([&] { interrupted_save(); }), "no error") << "call " << n;
    }
    reached = faulty.reached();
    EXPECT_TRUE(load_run(root() / "last").is(2)) << "call " << n;
  }
}

TEST_P(CheckpointFaultTest, ShortWritesAreContinued) {
  begin();
  ShortWrites halves;
  {
    const ScopedFileSystem scope(halves);
    interrupted_save();
  }
  EXPECT_TRUE(load_run(root() / "last").is(2));
}

TEST_P(CheckpointFaultTest, ProcessKilledAtAnyCallLeavesAWholeCheckpoint) {
  int n = 0;
  for (bool killed = true; killed; ++n) {
    begin();
    FaultyFileSystem faulty(n, []() -> int { ::_exit(9); });
    killed = save_is_killed(faulty);
    expect_sound(n);
  }
  EXPECT_GT(n, 15);
}

TEST_P(CheckpointFaultTest, MachineStoppedAtAnyCallLeavesAWholeCheckpoint) {
  for (const bool forgets_entries : {false, true}) {
    int n = 0;
    for (bool killed = true; killed; ++n) {
      begin();
      ForgetfulFileSystem forgetful(n, forgets_entries);
      killed = save_is_killed(forgetful, [&] { forgetful.forget(); });
      EXPECT_TRUE(killed || load_run(latest(root()).value()).is(2)) << "it had been saved";
      expect_sound(n);
    }
    EXPECT_GT(n, 15);
  }
}

INSTANTIATE_TEST_SUITE_P(, CheckpointFaultTest,
                         ::testing::Values(Interrupted{1, false}, Interrupted{2, false},
                                           Interrupted{1, true}, Interrupted{2, true}),
                         [](const auto& info) {
                           return std::string(info.param.asynchronous ? "Async" : "") +
                                  (info.param.step == 1 ? "SameStep" : "NewStep");
                         });

TEST_F(CheckpointTest, EveryFlippedBitAndEveryCutIsFoundAndTheOneBeforeTaken) {
  const fs::path newest = save_run(2, 2);
  std::mt19937 random(11);
  std::vector<std::pair<fs::path, std::string>> files;
  size_t total = 0;
  for (const auto& entry : fs::directory_iterator(newest)) {
    files.emplace_back(entry.path(), read_file(entry.path()));
    total += files.back().second.size();
  }
  save_run(1, 1);
  ::testing::internal::CaptureStderr();  // a warning for each
  for (int trial = 0; trial < 1000; ++trial) {
    size_t offset = random() % total;
    auto file = files.begin();
    for (; offset >= file->second.size(); ++file) offset -= file->second.size();
    std::string bad = file->second;
    if (trial % 2 == 0) {
      bad[offset] = static_cast<char>(bad[offset] ^ (1 << (random() % 8)));
    } else {
      bad.resize(offset);
    }
    std::ofstream(file->first, std::ios::binary) << bad;
    EXPECT_NE(error_of([&] { verify(newest); }), "no error") << file->first << " at " << offset;
    FakeRun run(-1);
    EXPECT_THROW(load(newest, run.model(), run.mutable_parts()), Error);
    EXPECT_TRUE(run.is(-1)) << file->first << " at " << offset;
    EXPECT_EQ(latest(root(), Check::contents), root() / "step-00000001");
    EXPECT_EQ(load_latest(root(), run.model(), run.mutable_parts()), root() / "step-00000001");
    EXPECT_TRUE(run.is(1)) << file->first << " at " << offset;
    std::ofstream(file->first, std::ios::binary) << file->second;
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("step-00000002"));
  EXPECT_TRUE(load_run(newest).is(2));
}

// 50 MB, as fast as they are written; the process is killed at moments spread over a save.
TEST_F(CheckpointTest, ProcessKilledAtAnyMomentOfALargeSaveLeavesAWholeCheckpoint) {
  const auto weight = [](double value) { return at::full({13'000'000}, value); };
  const auto model = [](const at::Tensor& tensor) {
    return nn::from_function([](const Tree& input) { return input; }, {{"weight", tensor}});
  };
  save(root(), 0, model(weight(0)), {});
  std::mt19937 random(3);
  for (int trial = 0; trial < 20; ++trial) {
    const pid_t child = ::fork();
    if (child == 0) {
      at::Tensor tensor = weight(0);
      for (int64_t step = 1;; ++step) {
        tensor.fill_(static_cast<double>(step));
        save(root(), step, model(tensor), {});
        keep_last(root(), 2);
      }
    }
    ::usleep(static_cast<useconds_t>(random() % 150'000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto found = latest(root(), Check::contents);
    ASSERT_TRUE(found.has_value());
    at::Tensor loaded = weight(-1);
    load(*found, model(loaded), {});
    EXPECT_TRUE(at::equal(loaded, weight(static_cast<double>(step_of(*found)))));
  }
  save(root(), 0, model(weight(0)), {});
  for (const std::string& name : entries()) EXPECT_THAT(name, Not(HasSubstr(".step")));
}

TEST_F(CheckpointTest, LeftOversOfLivingProcessesAreKept) {
  save_run(1, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  std::array<char, 256> host = {};
  ::gethostname(host.data(), host.size() - 1);
  std::string name = host.data();
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == '.'; }, '_');
  const fs::path living =
      root() / (".step-00000009.tmp-" + name + "-" + std::to_string(child) + "-0123");
  fs::create_directory(living);
  save_run(2, 2);
  EXPECT_TRUE(fs::exists(living));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  save_run(3, 3);
  EXPECT_FALSE(fs::exists(living));
}

}  // namespace
}  // namespace bellows::checkpoint
