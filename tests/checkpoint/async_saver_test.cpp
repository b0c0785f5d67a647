#include "bellows/checkpoint/async_saver.h"

#include <atomic>
#include <gmock/gmock.h>
#include <latch>
#include <thread>

#include "bellows/core/file.h"
#include "bellows/device/sim.h"
#include "tests/checkpoint/fixture.h"

namespace bellows::checkpoint {
namespace {

using ::testing::HasSubstr;

/// Holds every fsync until it is let go, or makes it fail.
class SlowDisk : public FileSystem {
 public:
  int fsync(int fd) override {
    ++waiting;
    go.wait();
    if (full) {
      errno = ENOSPC;
      return -1;
    }
    return FileSystem::fsync(fd);
  }
  std::latch go{1};
  std::atomic<int> waiting = 0;
  bool full = false;
};

TEST_F(CheckpointTest, AsynchronousSaveIsTheStateAtTheCallAlthoughTrainingGoesOn) {
  SlowDisk disk;
  const ScopedFileSystem scope(disk);
  AsyncSaver saver;
  FakeRun run(7);
  saver.save(root(), 5, run.model(), run.parts());
  while (disk.waiting == 0) std::this_thread::yield();
  EXPECT_TRUE(saver.busy());
  EXPECT_FALSE(saver.last().has_value());
  EXPECT_FALSE(latest(root()).has_value());  // complete or not there
  run.weight.fill_(8);
  run.optimizer.value().at("fc.weight").tensor().fill_(8);
  disk.go.count_down();
  saver.wait();
  EXPECT_FALSE(saver.busy());
  EXPECT_EQ(saver.last(), root() / "step-00000005");
  EXPECT_TRUE(load_run(root() / "last").is(7));
}

TEST_F(CheckpointTest, AsynchronousSaveWritesTheSameBytes) {
  const FakeRun run(7);
  const fs::path plain = save(root(), 1, run.model(), run.parts());
  AsyncSaver saver;
  saver.save(root().parent_path() / "other", 1, run.model(), run.parts());
  saver.wait();
  for (const auto& entry : fs::directory_iterator(plain)) {
    EXPECT_EQ(read_file(entry.path()), read_file(saver.last().value() / entry.path().filename()));
  }
}

TEST_F(CheckpointTest, NextAsynchronousSaveWaitsForTheOneBefore) {
  AsyncSaver saver;
  FakeRun run(0);
  for (int step = 1; step <= 10; ++step) {
    run = FakeRun(step);
    saver.save(root(), step, run.model(), run.parts(), [&](const fs::path& directory) {
      mark_best(root(), directory);
      keep_last(root(), 3);
    });
  }
  saver.wait();
  EXPECT_EQ(list(root()).size(), 3U);
  for (const fs::path& directory : list(root())) {
    EXPECT_TRUE(load_run(directory).is(static_cast<double>(step_of(directory))));
  }
  EXPECT_EQ(step_of(root() / "best"), 10);
}

TEST_F(CheckpointTest, CopiesFollowTensorsThatChangeTheirShapeOrNumber) {
  AsyncSaver saver;
  for (const int64_t size : {4, 9, 2}) {
    std::map<std::string, FakePart> parts;
    for (int64_t n = 0; n < size; ++n) {
      parts.emplace("part" + std::to_string(n), FakePart(at::full({size, 2}, double(n)).t()));
    }
    Parts pointers;
    for (const auto& [name, part] : parts) pointers[name] = &part;
    const FakeRun run(1);
    saver.save(root(), size, run.model(), pointers);
    saver.wait();
    FakePart last;
    load(saver.last().value(), run.model(), {{"part" + std::to_string(size - 1), &last}});
    EXPECT_TRUE(at::equal(last.value().tensor(), at::full({2, size}, double(size - 1))));
  }
}

TEST_F(CheckpointTest, ErrorInTheBackgroundReachesTheNextCallAndWhatWasThereStays) {
  save_run(1, 1);
  AsyncSaver saver;
  const FakeRun run(2);
  {
    SlowDisk disk;
    disk.full = true;
    disk.go.count_down();
    const ScopedFileSystem scope(disk);
    saver.save(root(), 2, run.model(), run.parts());
    EXPECT_THAT(error_of([&] { saver.save(root(), 3, run.model(), run.parts()); }),
                HasSubstr("No space left"));
  }
  EXPECT_EQ(latest(root()), root() / "step-00000001");
  saver.save(root(), 4, run.model(), run.parts());
  saver.wait();
  EXPECT_EQ(latest(root()), root() / "step-00000004");
}

TEST_F(CheckpointTest, MistakesOfTheCallerAreToldAtOnce) {
  AsyncSaver saver;
  const FakeRun run(2);
  EXPECT_THROW(saver.save(root(), -1, run.model(), {}), ValueError);
  const FakePart sparse(at::full({2, 2}, 1.0).to_sparse());
  EXPECT_THROW(saver.save(root(), 1, run.model(), {{"loader", &sparse}}), ValueError);
  saver.wait();
  EXPECT_FALSE(fs::exists(root()));
}

TEST_F(CheckpointTest, EndOfTheSaverWaitsForTheSaveInFlight) {
  {
    AsyncSaver saver;
    const FakeRun run(3);
    saver.save(root(), 3, run.model(), run.parts());
  }
  EXPECT_TRUE(load_run(root() / "last").is(3));
}

TEST_F(CheckpointTest, SavesOfSeveralThreadsUnderOneRootTakeTurns) {
  AsyncSaver saver;
  for (int step = 1; step <= 20; ++step) {
    const FakeRun run(2 * step);
    saver.save(root(), 2 * step, run.model(), run.parts());
    save_run(2 * step + 1, 2 * step + 1);
    keep_last(root(), 4);
  }
  saver.wait();
  for (const fs::path& directory : list(root())) {
    EXPECT_TRUE(load_run(directory).is(static_cast<double>(step_of(directory))));
  }
}

TEST_F(CheckpointTest, AsynchronousSaveOfADeviceTakesTheStateAtTheCall) {
  sim::enable();
  at::Tensor weight = at::full({1000}, 5.0).to(sim::device());
  const nn::Model model =
      nn::from_function([](const Tree& input) { return input; }, {{"fc.weight", weight}});
  AsyncSaver saver;
  saver.save(root(), 1, model, {});
  weight.fill_(6);
  saver.wait();
  at::Tensor loaded = at::full({1000}, 0.0);
  load(saver.last().value(),
       nn::from_function([](const Tree& input) { return input; }, {{"fc.weight", loaded}}), {});
  EXPECT_TRUE(at::equal(loaded, at::full({1000}, 5.0)));
}

}  // namespace
}  // namespace bellows::checkpoint
