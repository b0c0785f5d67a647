#include "bellows/checkpoint/checkpoint.h"

#include <cmath>
#include <fstream>
#include <gmock/gmock.h>
#include <random>

#include "bellows/checkpoint/directory.h"
#include "bellows/checkpoint/manifest.h"
#include "bellows/checkpoint/safetensors_io.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"
#include "bellows/optim/adamw.h"
#include "tests/checkpoint/fixture.h"

namespace bellows::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(CheckpointTest, SavedRunComesBackWhole) {
  const fs::path directory = save_run(1200, 7);
  EXPECT_EQ(directory, root() / "step-00001200");
  EXPECT_TRUE(load_run(directory).is(7));
  EXPECT_EQ(step_of(directory), 1200);
}

TEST_F(CheckpointTest, DirectoryHoldsTheDocumentedFiles) {
  const fs::path directory = save_run(1, 7);
  EXPECT_TRUE(fs::exists(directory / "model.safetensors"));
  EXPECT_TRUE(fs::exists(directory / "optimizer.safetensors"));
  EXPECT_FALSE(fs::exists(directory / "loader.safetensors"));  // it has no tensors
  EXPECT_THAT(entries(), ElementsAre("last", "step-00000001"));
  EXPECT_EQ(fs::read_symlink(root() / "last"), "step-00000001");
}

TEST_F(CheckpointTest, WeightsFileDependsOnTheWeightsAlone) {
  const FakeRun run(7);
  const auto bytes = [&](int64_t step, const Parts& parts) {
    return read_file(save(root(), step, run.model(), parts) / "model.safetensors");
  };
  EXPECT_EQ(bytes(1, run.parts()), bytes(2, {}));
}

TEST_F(CheckpointTest, ListIsInOrderOfStepAndLatestIsItsEnd) {
  EXPECT_TRUE(list(root()).empty());
  EXPECT_FALSE(latest(root()).has_value());
  save_run(10, 1);
  save_run(9, 2);
  save_run(100'000'000, 3);
  EXPECT_THAT(list(root()), ElementsAre(root() / "step-00000009", root() / "step-00000010",
                                        root() / "step-100000000"));
  EXPECT_EQ(latest(root()), root() / "step-100000000");
}

TEST_F(CheckpointTest, SameStepIsReplaced) {
  save_run(5, 1);
  const fs::path directory = save_run(5, 2);
  EXPECT_TRUE(load_run(directory).is(2));
  EXPECT_THAT(entries(), ElementsAre("last", "step-00000005"));
}

TEST_F(CheckpointTest, DamagedCheckpointsAreLeftOut) {
  save_run(1, 1);
  const fs::path cut = save_run(2, 2);
  const fs::path gone = save_run(3, 3);
  const fs::path text = save_run(4, 4);
  fs::resize_file(cut / "model.safetensors", 10);
  fs::remove(gone / "optimizer.safetensors");
  fs::resize_file(text / "checkpoint.json", 30);
  fs::create_directory(root() / "step-00000005");
  fs::rename(save_run(7, 7), root() / "step-00000006");  // the name lies
  EXPECT_THAT(list(root()), ElementsAre(root() / "step-00000001"));
  EXPECT_EQ(latest(root()), root() / "step-00000001");
  EXPECT_THAT(fault_of(cut), AllOf(HasSubstr("model.safetensors: got 10 bytes, expected")));
  EXPECT_THAT(fault_of(gone), HasSubstr("optimizer.safetensors: stat: No such file"));
  EXPECT_THAT(fault_of(text), HasSubstr("checkpoint.json: it is not a JSON object"));
  EXPECT_THAT(fault_of(root() / "step-00000006"), HasSubstr("it holds step 7"));
}

TEST_F(CheckpointTest, OneFlippedBitAnywhereIsDetectedBeforeAnythingChanges) {
  const fs::path directory = save_run(1, 7);
  std::mt19937 random(5);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "checkpoint.json"}) {
    const std::string good = read_file(directory / name);
    for (size_t offset = 0; offset < good.size(); ++offset) {
      std::string bad = good;
      bad[offset] = static_cast<char>(bad[offset] ^ (1 << (random() % 8)));
      std::ofstream(directory / name, std::ios::binary) << bad;
      FakeRun run(-1);
      EXPECT_THROW(load(directory, run.model(), run.mutable_parts()), Error) << name << offset;
      EXPECT_TRUE(run.is(-1)) << name << " at " << offset;
    }
    std::ofstream(directory / name, std::ios::binary) << good;
  }
  EXPECT_TRUE(load_run(directory).is(7));
}

TEST_F(CheckpointTest, NewerVersionIsRefusedByName) {
  const fs::path directory = save_run(1, 7);
  std::string text = read_file(directory / "checkpoint.json");
  text.replace(text.find("\"version\":2"), 11, "\"version\":9");
  std::ofstream(directory / "checkpoint.json") << text;
  EXPECT_THAT(error_of([&] { load_run(directory); }),
              AllOf(HasSubstr("version 9"), HasSubstr("reads up to version 2")));
}

// Written by the version before: parts without a list of files, checksums of whole files.
TEST_F(CheckpointTest, CheckpointOfVersion1IsReadForEver) {
  const fs::path directory = root() / "step-00000012";
  fs::create_directories(root());
  fs::copy(VERSION_1_CHECKPOINT, directory);
  ASSERT_THAT(read_file(directory / kManifestName), HasSubstr("\"version\":1"));
  EXPECT_EQ(latest(root(), Check::contents), directory);
  EXPECT_EQ(step_of(directory), 12);
  EXPECT_TRUE(load_run(directory).is(7));
  FakeRun run(-1);
  FakePart other;
  load(directory, run.model(), {{"other", &other}});
  EXPECT_TRUE(std::isnan(other.value().at("nan").number()));
  EXPECT_EQ(other.value().at("list")[1].string(), "two");
  EXPECT_TRUE(at::equal(other.value().at("list")[2].tensor(), at::full({2}, 3.0)));
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "checkpoint.json"}) {
    const std::string good = read_file(directory / name);
    for (size_t offset = 0; offset < good.size(); offset += 7) {
      std::string bad = good;
      bad[offset] = static_cast<char>(bad[offset] ^ 16);
      std::ofstream(directory / name, std::ios::binary) << bad;
      EXPECT_THROW(load(directory, run.model(), run.mutable_parts()), Error) << name << offset;
    }
    std::ofstream(directory / name, std::ios::binary) << good;
  }
}

TEST_F(CheckpointTest, MissingPartIsNamedWithThoseThatAreThere) {
  const FakeRun saved(7);
  const fs::path directory = save(root(), 1, saved.model(), {{"optimizer", &saved.optimizer}});
  FakeRun run(-1);
  EXPECT_THAT(error_of([&] { load(directory, run.model(), run.mutable_parts()); }),
              AllOf(HasSubstr("no part 'loader'"), HasSubstr("one of: optimizer")));
  EXPECT_TRUE(run.is(-1));
}

TEST_F(CheckpointTest, PartsThatAreNotAskedForAreLeftAlone) {
  const fs::path directory = save_run(1, 7);
  const FakeRun run(-1);
  load(directory, run.model(), {});
  EXPECT_TRUE(at::equal(run.weight, at::full({3, 4}, 7.0)));
}

TEST_F(CheckpointTest, PartThatRefusesLeavesEverythingAsItWas) {
  const fs::path directory = save_run(1, 7);
  FakeRun run(-1);
  run.optimizer.refuses = true;  // comes after the loader
  EXPECT_THAT(error_of([&] { load(directory, run.model(), run.mutable_parts()); }),
              HasSubstr("a part that refuses"));
  EXPECT_EQ(run.loader.loads, 2);  // loaded, then given back
  EXPECT_TRUE(run.is(-1));
}

TEST_F(CheckpointTest, WeightsThatDoNotFitLeaveEverythingAsItWas) {
  const fs::path directory = save_run(1, 7);
  FakeRun run(-1);
  const nn::Model other = nn::from_function([](const Tree& input) { return input; },
                                            {{"other", at::full({3, 4}, 1.0)}});
  EXPECT_THAT(error_of([&] { load(directory, other, run.mutable_parts()); }),
              AllOf(HasSubstr("other"), HasSubstr("fc.weight")));
  EXPECT_EQ(run.loader.loads, 0);
}

TEST_F(CheckpointTest, WeightsComeFromADirectoryALinkOrAFile) {
  const fs::path directory = save_run(1, 7);
  for (const fs::path& path : {directory, root() / "last", directory / "model.safetensors"}) {
    const FakeRun run(-1);
    load_weights(path, run.model());
    EXPECT_TRUE(at::equal(run.weight, at::full({3, 4}, 7.0))) << path;
  }
  EXPECT_THAT(error_of([&] { load_weights(root() / "nothing", FakeRun(1).model()); }),
              HasSubstr("nothing: open: No such file"));
}

TEST_F(CheckpointTest, OldCheckpointsGoButNotTheBest) {
  for (int step = 1; step <= 5; ++step) save_run(step, step);
  mark_best(root(), root() / "step-00000002");
  keep_last(root(), 2);
  EXPECT_THAT(entries(),
              ElementsAre("best", "last", "step-00000002", "step-00000004", "step-00000005"));
  EXPECT_TRUE(load_run(root() / "best").is(2));
  EXPECT_THROW(keep_last(root(), 0), ValueError);
}

TEST_F(CheckpointTest, WhatIsNoCheckpointIsNotRemoved) {
  save_run(1, 1);
  save_run(2, 2);
  const fs::path other = root() / "thesis";
  fs::create_directory(other);
  std::ofstream(other / "thesis.tex") << "mine";
  EXPECT_THROW(checkpoint::remove(other), ValueError);
  EXPECT_THROW(checkpoint::remove(root()), ValueError);
  fs::create_directory(root() / "step-00000001" / "notes");
  EXPECT_THROW(checkpoint::remove(root() / "step-00000001"), ValueError);
  EXPECT_THROW(checkpoint::remove(root() / "step-00000009"), FileError);
  EXPECT_TRUE(fs::exists(other / "thesis.tex"));
  EXPECT_TRUE(load_run(root() / "step-00000001").is(1));
  checkpoint::remove(root() / "step-00000002");
  EXPECT_THAT(entries(), ElementsAre("last", "step-00000001", "thesis"));
}

TEST_F(CheckpointTest, BestMustBeACheckpointUnderTheRoot) {
  save_run(1, 1);
  fs::create_directory(root() / "empty");
  EXPECT_THROW(mark_best(root(), root() / "empty"), FileError);
  EXPECT_THROW(mark_best(root(), root().parent_path()), ValueError);
  EXPECT_FALSE(fs::is_symlink(root() / "best"));
  mark_best(root(), root() / "last");
  EXPECT_EQ(fs::read_symlink(root() / "best"), "step-00000001");
}

TEST_F(CheckpointTest, BadArgumentsAreRefusedBeforeAnythingIsWritten) {
  const FakeRun run(7);
  EXPECT_THROW(save(root(), -1, run.model(), run.parts()), ValueError);
  for (const char* name : {"", "model", "../up", "a b"}) {
    EXPECT_THROW(save(root(), 1, run.model(), {{name, &run.loader}}), ValueError) << name;
  }
  EXPECT_THROW(save(root(), 1, run.model(), {{"loader", nullptr}}), ValueError);
  EXPECT_FALSE(fs::exists(root()));
  const FakePart sparse(at::full({2, 2}, 1.0).to_sparse());
  EXPECT_THAT(error_of([&] {
                save(root(), 1, run.model(), {{"loader", &sparse}});
              }),
              AllOf(HasSubstr("part 'loader'"), HasSubstr("Sparse")));
  EXPECT_FALSE(fs::exists(root()));
}

TEST_F(CheckpointTest, FileOfAnotherCheckpointIsNotTakenForThisOnes) {
  const fs::path directory = save_run(1, 7);
  const fs::path other = save_run(2, 8);
  ASSERT_EQ(fs::file_size(other / "optimizer.safetensors"),
            fs::file_size(directory / "optimizer.safetensors"));
  fs::copy(other / "optimizer.safetensors", directory / "optimizer.safetensors",
           fs::copy_options::overwrite_existing);
  EXPECT_THAT(error_of([&] { load_run(directory); }),
              AllOf(HasSubstr("optimizer.safetensors"), HasSubstr("checksum")));
}

TEST_F(CheckpointTest, TensorsThatBelongToNothingAreRefused) {
  const fs::path directory = root() / "step-00000001";
  fs::create_directories(directory);
  Manifest manifest{.step = 1, .files = {}, .parts = {}};
  for (const std::string part : {"model", "loader"}) {
    const std::string name = part + ".safetensors";
    manifest.files[name] =
        write_safetensors_hashed(directory / name, {{"fc.weight", at::full({3, 4}, 1.0)}});
    manifest.parts[part] = {
        .state = part == "model" ? "null" : "{}", .files = {name}, .sliced = {}};
  }
  std::ofstream(directory / kManifestName) << format_manifest(manifest);
  FakeRun run(-1);
  EXPECT_THAT(
      error_of([&] {
        load(directory, run.model(), {{"loader", &run.loader}});
      }),
      AllOf(HasSubstr("part 'loader'"), HasSubstr("tensor 'fc.weight' belongs to nothing")));
  EXPECT_TRUE(run.is(-1));
}

// A linear layer that learns; its gradients depend on weights and step.
struct Training {
  at::Tensor weight = at::full({4, 3}, 0.5).set_requires_grad(true);
  at::Tensor bias = at::full({4}, -0.25, at::kDouble).set_requires_grad(true);
  nn::Model model = nn::from_function([](const Tree& input) { return input; },
                                      {{"weight", weight}, {"bias", bias}});
  optim::AdamW optimizer = optim::AdamW(model.named_parameters(), {.lr = 0.05, .amsgrad = true});

  void run(int from, int to) {
    for (int step = from; step < to; ++step) {
      for (const auto& [name, parameter] : model.named_parameters()) {
        parameter.mutable_grad() = parameter.detach().add(0.3 * step).sin();
      }
      optimizer.step();
      optimizer.zero_grad();
    }
  }
};

TEST_F(CheckpointTest, ResumedTrainingEqualsAnUnbrokenOneBitByBit) {
  Training unbroken;
  unbroken.run(0, 10);

  Training stopped;
  stopped.run(0, 4);
  save(root(), 4, stopped.model, {{"optimizer", &stopped.optimizer}});
  Training resumed;
  load(root() / "last", resumed.model, {{"optimizer", &resumed.optimizer}});
  resumed.run(4, 10);
  EXPECT_TRUE(at::equal(resumed.weight, unbroken.weight));
  EXPECT_TRUE(at::equal(resumed.bias, unbroken.bias));
}

TEST_F(CheckpointTest, RootUnderAFileIsAFileErrorWithItsName) {
  std::ofstream(root()) << "x";
  const FakeRun run(7);
  EXPECT_THAT(error_of([&] { save(root(), 1, run.model(), run.parts()); }),
              HasSubstr(root().string()));
}

}  // namespace
}  // namespace bellows::checkpoint
