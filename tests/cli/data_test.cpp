// `bellows data`, run as a user runs it.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <sstream>

#include <gtest/gtest.h>

#include "bellows/core/file.h"
#include "bellows/data/image.h"
#include "cli/progress_line.h"
#include "tests/cli/bellows_program.h"
#include "tests/data/image_files.h"

namespace bellows::testing {
namespace {
namespace fs = std::filesystem;

using data::test::picture;
using data::test::png_bytes;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class DataCommandTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return (folder_ / name).string();
  }
  void write_pictures() const {
    for (int i = 0; i < 6; ++i) {
      for (const char* part : {"train", "val"}) {
        write(std::string(part) + (i < 4 ? "/cat/" : "/dog/") + std::to_string(i) + ".png",
              png_bytes(picture(40 + i, 50, 3, i)));
      }
    }
  }
  ProcessResult inspect(std::vector<std::string> more = {}) const {
    std::vector<std::string> words{"data", "inspect", folder_.path().string()};
    words.insert(words.end(), more.begin(), more.end());
    return bellows(words);
  }
  std::string config(const std::string& data) const {
    return write("config.toml", "[run]\nseed = 3\ndevice = \"cpu\"\nthreads = 1\n[data]\n" + data +
                                    "[model]\nname = \"mlp\"\nhidden = [8]\n");
  }

  TemporaryFolder folder_;
};

TEST_F(DataCommandTest, InspectTellsCountsShapesTypesAndClasses) {
  write_pictures();
  const auto result = inspect();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "") << "progress is for terminals";
  EXPECT_THAT(result.out, HasSubstr(": image folder\n"
                                    "train: 6 samples\n"
                                    "  0: uint8 [3, 40..45, 50]\n"
                                    "  1: integer\n"
                                    "  2 classes of 2 to 4 samples\n"
                                    "    cat: 4 (66.7 %)\n"
                                    "    dog: 2 (33.3 %)\n"
                                    "val: 6 samples\n"));
}

TEST_F(DataCommandTest, InspectNamesDamagedFilesAndGoesOn) {
  write_pictures();
  const std::string whole = png_bytes(picture(40, 50));
  for (const char* name : {"train/cat/1.png", "train/dog/4.png", "train/dog/5.png"})
    write(name, whole.substr(0, whole.size() / 2));
  const auto result = inspect({"--damaged", "2"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, AllOf(HasSubstr("train: 3 samples"),
                                HasSubstr("3 damaged, the first 2:\n    sample 1: "),
                                HasSubstr("train/cat/1.png: PNG: "), HasSubstr("dog/4.png"),
                                Not(HasSubstr("dog/5.png")), HasSubstr("val: 6 samples")));
}

TEST_F(DataCommandTest, InspectDrawsAContactSheet) {
  write_pictures();
  const std::string sheet = (folder_ / "sheet.png").string();
  const auto result = inspect({"--contact-sheet", sheet});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const at::Tensor image = data::read_image(sheet);
  // Two classes, eight and four images.
  EXPECT_EQ(image.sizes(), (at::IntArrayRef{3, 2 * 66 + 2, 8 * 66 + 2}));
  const auto paper = [&](int64_t row, int64_t column) {
    return image.narrow(1, 2 + 66 * row, 64).narrow(2, 2 + 66 * column, 64).eq(255).all();
  };
  EXPECT_FALSE(paper(0, 7).item<bool>());
  EXPECT_FALSE(paper(1, 3).item<bool>());
  EXPECT_TRUE(paper(1, 4).item<bool>());
}

TEST_F(DataCommandTest, InspectKnowsEveryKindOfSource) {
  const std::string shard = data::test::tar_bytes(
      {{"a.png", png_bytes(picture(4, 5))}, {"a.cls", "3"}, {"a.txt", "words"}});
  write("shards/train-0.tar", shard);
  write("shards/train-1.tar", shard.substr(0, 700));
  write("shards/test-0.tar", shard);
  write("tables/train.csv", "a,b,target\n1,2,0\n3,4,1\n");
  write("tables/one.csv", "a,kind\n1,0\n3,oops\n");
  write_image_set(folder_ / "mnist", 20, 10);
  std::string record(1 + 3072, '\x33');
  record[0] = 7;
  write("cifar/test_batch.bin", record);
  for (int i = 1; i <= 5; ++i) write("cifar/data_batch_" + std::to_string(i) + ".bin", record);
  const auto run = [&](const std::string& name, std::vector<std::string> more = {}) {
    std::vector<std::string> words{"data", "inspect", (folder_ / name).string()};
    words.insert(words.end(), more.begin(), more.end());
    return bellows(words);
  };
  const auto shards = run("shards");
  EXPECT_EQ(shards.exit_code, 3);
  EXPECT_THAT(
      shards.out,
      AllOf(HasSubstr("shards: tar shards\ntest: 1 samples\n  __key__: string\n"
                      "  cls: integer\n  png: uint8 [3, 4, 5]\n  txt: string\n"),
            HasSubstr("train: 1 samples"), HasSubstr("1 damaged:\n"), HasSubstr("train-1.tar")));
  EXPECT_THAT(run("shards/test-0.tar").out, HasSubstr("test-0.tar: tar shard\nall: 1 samples"));
  EXPECT_THAT(run("tables").out,
              HasSubstr("tables: CSV\ntrain: 2 samples\n  0: float32 [2]\n  1: int64 []\n"));
  const auto table = run("tables/one.csv", {"--target", "kind"});
  EXPECT_EQ(table.exit_code, 3);
  EXPECT_THAT(table.out,
              AllOf(HasSubstr("all: 0 samples"), HasSubstr("one.csv"), HasSubstr("oops")));
  EXPECT_THAT(run("mnist").out, AllOf(HasSubstr("train: 20 samples\n  0: uint8 [1, 28, 28]"),
                                      HasSubstr("test: 10 samples")));
  EXPECT_THAT(run("mnist/t10k-images-idx3-ubyte").out,
              HasSubstr("IDX file\nall: 10 samples\n  0: uint8 [28, 28]"));
  EXPECT_THAT(run("cifar").out, HasSubstr("cifar: CIFAR-10\ntrain: 5 samples\n"
                                          "  0: uint8 [3, 32, 32]\n  1: int64 []\n"
                                          "  1 classes of 5 to 5 samples\n    7: 5 (100.0 %)"));
}

TEST_F(DataCommandTest, NamesThatHoldTarSomewhereAreNoShards) {
  write("set/train.csv", "a,target\n1,0\n2,1\n");
  write("set/readme.targets.txt", "a: some number");
  write("my.target.csv", "a,target\n1,0\n");
  EXPECT_THAT(bellows({"data", "inspect", (folder_ / "set").string()}).out,
              HasSubstr("set: CSV\ntrain: 2 samples\n"));
  EXPECT_THAT(bellows({"data", "inspect", (folder_ / "my.target.csv").string()}).out,
              HasSubstr("my.target.csv: CSV\nall: 1 samples\n"));
  // Beside shards they are left alone, in training as well.
  std::vector<std::pair<std::string, std::string>> files;
  for (int i = 0; i < 4; ++i) {
    files.emplace_back(std::to_string(i) + ".png", png_bytes(picture(20, 20, 3, i)));
    files.emplace_back(std::to_string(i) + ".cls", std::to_string(i % 2));
  }
  const std::string shard = data::test::tar_bytes(files);
  write("shards/train-0.tar", shard);
  write("shards/test-0.tar", shard);
  write("shards/train-0.tar.md5", "d41d8cd98f00b204e9800998ecf8427e");
  write("shards/train-0.tar.bak", shard);
  const std::string root = (folder_ / "shards").string();
  EXPECT_THAT(bellows({"data", "inspect", root}).out,
              AllOf(HasSubstr("train: 4 samples"), Not(HasSubstr("damaged"))));
  const auto bench =
      bellows({"data", "bench",
               config("dataset = \"tar\"\nroot = \"" + root +
                      "\"\nclasses = 2\nbatch_size = 2\nimage_size = 16\n"),
               "--seconds", "0.01", "--workers", "0", "--set", "model.in_features=768"});
  EXPECT_EQ(bench.exit_code, 0) << bench.err;
  EXPECT_THAT(bench.out, HasSubstr("mlp on tar, 4 samples"));
}

TEST_F(DataCommandTest, SourcesWithoutSamplesAreNamedAndTheOthersRead) {
  const std::string empty = data::test::tar_bytes({});
  write("shards/train-0.tar", empty);
  write("shards/train-1.tar", data::test::tar_bytes({{"a.cls", "3"}}));
  const auto npy = [](const std::string& shape) {
    std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': " + shape + ", }";
    header.append(118 - 1 - header.size(), ' ') += '\n';
    return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header;
  };
  const std::string nothing = ": got no samples, expected at least one\n";
  for (const auto& [path, reason] :
       {std::pair{write("empty.tar", empty), nothing},
        {write("empty.npy", npy("(0, 3)")), nothing},
        {write("one.npy", npy("()") + "x"), ": got a single number,"},
        {write("e-ubyte", std::string("\0\0\x08\x01\0\0\0\0", 8)), nothing}}) {
    const auto result = bellows({"data", "inspect", path});
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_THAT(result.out, HasSubstr("all: 0 samples\n  1 damaged:\n    " + path + reason));
  }
  const auto shards = bellows({"data", "inspect", (folder_ / "shards").string()});
  EXPECT_EQ(shards.exit_code, 3);
  EXPECT_THAT(shards.out, AllOf(HasSubstr("train: 1 samples"), HasSubstr("train-0.tar" + nothing)));
}

TEST_F(DataCommandTest, OutputThatCannotBeWrittenIsAnError) {
  ASSERT_EQ(bellows({"data", "inspect", write("t.csv", "a,target\n1,0\n")}).exit_code, 0);
  for (const char* command : {"data inspect t.csv >/dev/full", "data inspect t.csv >&-",
                              "doctor >/dev/full", "models >/dev/full"}) {
    const auto result =
        run({"/bin/sh", "-c", std::string("exec \"$0\" ") + command, BELLOWS_PROGRAM},
            with_libtorch({{"PATH", "/usr/bin:/bin"}}), folder_.path());
    EXPECT_EQ(result.exit_code, 1) << command;
    EXPECT_THAT(result.err, HasSubstr("bellows: standard output ")) << command;
  }
}

TEST_F(DataCommandTest, BenchMeasuresStagesAndWorkersAndRecommends) {
  write_pictures();
  const std::string file =
      config("dataset = \"image-folder\"\nroot = \"" + folder_.path().string() +
             "\"\nbatch_size = 2\nimage_size = 16\naugment = [\"flip\"]\n");
  const auto result = bellows({"data", "bench", file, "--seconds", "0.02", "--workers", "0,2",
                               "--set", "model.in_features=768"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out,
              HasSubstr("mlp on image-folder, 6 samples in batches of 2, device cpu\n"));
  for (const char* stage : {"read", "transform", "collate"}) {
    EXPECT_THAT(result.out, ContainsRegex(std::string(stage) + " +[0-9]+ +[0-9]+\\.[0-9][0-9]\n"));
  }
  EXPECT_THAT(result.out, HasSubstr("copy               -          -\n")) << "nothing to copy";
  EXPECT_THAT(result.out, ContainsRegex("\n      0 +[0-9]+ +[0-9]+ +[0-9.]+ %\n"
                                        "      2 +[0-9]+ +[0-9]+ +[0-9.]+ %\n"));
  EXPECT_THAT(result.out, ContainsRegex("recommended: data\\.workers=[02]\n"
                                        "(input|compute) binds: a step waits [0-9.]+ % of its"));
  EXPECT_FALSE(fs::exists("runs")) << "something was written";
}

// What takes long shows: decoding large images for a tiny model, or a large model on tiny images.
TEST_F(DataCommandTest, BenchTellsInputFromCompute) {
  for (int i = 0; i < 4; ++i) {
    for (const char* part : {"train/a/", "val/a/"})
      write(part + std::to_string(i) + ".png", png_bytes(picture(700, 700, 3, i)));
  }
  const std::string folder =
      config("dataset = \"image-folder\"\nroot = \"" + folder_.path().string() +
             "\"\nbatch_size = 2\nimage_size = 8\n");
  const auto input = bellows({"data", "bench", folder, "--seconds", "0.1", "--workers", "0",
                              "--set", "model.in_features=192"});
  EXPECT_THAT(input.out, HasSubstr("input binds")) << input.err;
  const SmallRun run;
  const auto compute =
      bellows({"data", "bench", run.config(), "--seconds", "0.1", "--workers", "0", "--set",
               "model.hidden=[4096, 4096]", "--set", "data.augment=[\"crop\", \"flip\"]"});
  EXPECT_THAT(compute.out, HasSubstr("compute binds")) << compute.err;
}

TEST_F(DataCommandTest, TrainingCountsImagesItLeavesOutAndNeedsOneThatItCanRead) {
  for (int i = 0; i < 4; ++i) {
    for (const char* part : {"train/a/", "val/a/"})
      write(part + std::to_string(i) + ".png", png_bytes(picture(9, 9, 3, i)));
  }
  write("train/a/2.png", "no image");
  const auto train = [&](const std::string& policy) {
    const std::string text = "dataset = \"image-folder\"\nroot = \"" + folder_.path().string() +
                             "\"\nbatch_size = 2\nimage_size = 8\n";
    return bellows({"train", config(text), "--run", (folder_ / "run").string(), "--overwrite",
                    "--set", "model.in_features=192", "--set", "data.on_error=" + policy});
  };
  const auto raised = train("\"raise\"");
  EXPECT_EQ(raised.exit_code, 3) << raised.err;
  EXPECT_THAT(raised.err, HasSubstr("2.png"));
  const auto skipped = train("\"skip\"");
  EXPECT_EQ(skipped.exit_code, 0) << skipped.err;
  EXPECT_THAT(skipped.err, AllOf(HasSubstr("1 training samples"), HasSubstr("2.png")));
  EXPECT_THAT(read_file(folder_ / "run/summary.json"), HasSubstr("\"skipped_samples\": 1"));
  for (int i = 0; i < 4; ++i) write("train/a/" + std::to_string(i) + ".png", "no image");
  const auto none = train("\"skip\"");
  EXPECT_EQ(none.exit_code, 3) << none.err;
  EXPECT_THAT(none.err, AllOf(HasSubstr("had no batch"), HasSubstr(".png: got 8 bytes")));
}

TEST_F(DataCommandTest, BenchCopiesToASimulatedDevice) {
  const SmallRun run;
  const auto result = bellows(
      {"data", "bench", run.config(), "--seconds", "0.02", "--workers", "1", "--device", "sim:0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, ContainsRegex("device sim:0\n"));
  EXPECT_THAT(result.out, ContainsRegex("copy +[0-9]+ +[0-9.]+\n"));
}

TEST_F(DataCommandTest, MistakesAreOneSentenceAndTheirExitCode) {
  const auto refused = [](std::vector<std::string> words, int code, const std::string& text) {
    words.insert(words.begin(), "data");
    const auto result = bellows(words);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  refused({}, 2, "bellows data: expected inspect or bench");
  refused({"inspct"}, 2, "got 'inspct'");
  refused({"inspect"}, 2, "bellows data inspect: ");
  refused({"inspect", "/nowhere"}, 2, "/nowhere: no such file or folder");
  refused({"inspect", folder_.path().string()}, 2, "found no data set");
  refused({"inspect", write("x.bin", "")}, 2, "x.bin: cannot tell what it is by its name");
  write("t/train.csv", "a,target\n1,0\n");
  refused({"inspect", (folder_ / "t").string(), "--contact-sheet", "x.png"}, 2, "no images");
  refused({"bench", "/nowhere.toml"}, 2, "no such configuration file");
  refused({"bench", config("dataset = \"mnist\"\nroot = \"/nowhere\"\n")}, 3, "/nowhere");
  refused({"bench", config("datset = \"mnist\"\n")}, 2, "datset");
  refused({"bench", config(""), "--workers", "-1"}, 2, "--workers");
}

TEST(ProgressLineTest, IsWrittenOverNowAndThenAndClearedAtATerminalOnly) {
  std::ostringstream terminal, file;
  {
    cli::ProgressLine at_terminal(terminal, true), in_file(file, false);
    for (int i = 0; i < 1000; ++i) {
      at_terminal.show("number " + std::to_string(i));
      in_file.show("number");
    }
  }
  EXPECT_THAT(terminal.str(), ::testing::StartsWith("\r\x1b[Knumber 0"));
  EXPECT_TRUE(terminal.str().ends_with("\r\x1b[K"));
  EXPECT_LT(terminal.str().size(), 1000U) << "too often";
  EXPECT_EQ(file.str(), "");
}

TEST_F(DataCommandTest, TheCommandsOfThePageRun) {
  if (!fs::exists("/usr/share/datasets/fashion-mnist")) GTEST_SKIP() << "no Fashion-MNIST here";
  fs::create_directory_symlink(fs::path(TEST_SOURCE_DIR) / "configs", folder_ / "configs");
  std::ifstream page(fs::path(TEST_SOURCE_DIR) / "docs/data.md");
  const std::string path = fs::path(BELLOWS_PROGRAM).parent_path().string() + ":/usr/bin:/bin";
  int ran = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("bellows data ")) continue;
    const auto result =
        run({"/bin/sh", "-c", line}, with_libtorch({{"PATH", path}}), folder_.path());
    EXPECT_EQ(result.exit_code, 0) << line << '\n' << result.err;
    ++ran;
  }
  EXPECT_EQ(ran, 2);
  EXPECT_TRUE(fs::exists(folder_ / "fashion-mnist.png"));
}

TEST_F(DataCommandTest, HelpSaysWhatThereIs) {
  for (const auto& [words, text] :
       {std::pair<std::vector<std::string>, const char*>{{"data", "--help"}, "inspect"},
        {{"data", "inspect", "--help"}, "--contact-sheet"},
        {{"data", "bench", "--help"}, "--workers"},
        {{"--help"}, " Inspect data sets;"}}) {
    const auto result = bellows(words);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr(text));
  }
}

}  // namespace
}  // namespace bellows::testing
