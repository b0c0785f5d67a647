// `bellows checkpoint`, run as a user runs it, on files that Python and LibTorch wrote (they are
// also what fuzzing begins with).
#include "bellows/checkpoint/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bellows/checkpoint/torch_file.h"
#include "bellows/core/file.h"
#include "tests/cli/bellows_program.h"

namespace bellows::testing {
namespace {
namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class CheckpointCommandTest : public ::testing::Test {
 protected:
  static std::string corpus(const std::string& name) {
    return TEST_SOURCE_DIR "/tests/fuzz/corpus/torch/" + name;
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return file(name);
  }
  static ProcessResult checkpoint(std::vector<std::string> words) {
    words.insert(words.begin(), "checkpoint");
    return bellows(words);
  }
  // A checkpoint of a model with one weight.
  std::string save(double value) const {
    const auto model = nn::from_function([](const Tree& input) { return input; },
                                         {{"fc.weight", at::full({2, 3}, value)}});
    return checkpoint::save(folder_ / "checkpoints", 7, model, {}).string();
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointCommandTest, InspectListsTensorsWithoutRunningCode) {
  const auto state = checkpoint({"inspect", corpus("state.pt")});
  EXPECT_EQ(state.exit_code, 0) << state.err;
  EXPECT_THAT(state.out,
              AllOf(HasSubstr("state.pt: a file of Python's torch.save\n"),
                    ContainsRegex("model\\.w  +float32 +\\[2, 3\\] +24\n"),
                    ContainsRegex("model\\.f8 +float8_e5m2 +\\[1\\] +1\n"),
                    ContainsRegex("model\\.s +int64 +\\[\\] +8\n"), HasSubstr("6 tensors, ")));
  const auto script = checkpoint({"inspect", corpus("script.pt")});
  EXPECT_THAT(script.out,
              AllOf(HasSubstr("a TorchScript archive"), HasSubstr("1 tensors, 1 values")));
  const auto archive = checkpoint({"inspect", corpus("libtorch.pt")});
  EXPECT_THAT(archive.out, AllOf(HasSubstr("torch::save in C++"), HasSubstr("0.weight"),
                                 HasSubstr("1.running_mean")));
}

TEST_F(CheckpointCommandTest, InspectPrintsJson) {
  const auto result = checkpoint({"inspect", "--json", save(1)});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("step"), 7);
  EXPECT_EQ(json.at("bytes"), 24);
  EXPECT_EQ(json.at("tensors").at(0).at("shape"), (std::vector<int>{2, 3}));
}

TEST_F(CheckpointCommandTest, OtherKindsAreNamedWithTheRightCall) {
  const auto module = checkpoint({"inspect", corpus("module.pt")});
  EXPECT_EQ(module.exit_code, 2);
  EXPECT_THAT(module.err, AllOf(HasSubstr("a whole module"), HasSubstr("state_dict()")));
  const auto text = checkpoint({"verify", write("page.pt", "<html></html>\n")});
  EXPECT_EQ(text.exit_code, 2);
  EXPECT_THAT(text.err, HasSubstr("page.pt: is a text file"));
  EXPECT_EQ(checkpoint({"inspect", file("absent")}).exit_code, 3);
  EXPECT_EQ(checkpoint({"inpsect", file("absent")}).exit_code, 2);
  EXPECT_EQ(checkpoint({}).exit_code, 2);
  EXPECT_EQ(checkpoint({"--help"}).exit_code, 0);
}

TEST_F(CheckpointCommandTest, VerifyNamesWhatIsDamaged) {
  const auto whole = checkpoint({"verify", corpus("state.pt"), corpus("legacy.pt"), save(1)});
  EXPECT_EQ(whole.exit_code, 0) << whole.out << whole.err;
  std::string bytes = read_file(corpus("state.pt"));
  const size_t data = bytes.find(std::string("\0\0\x80\x3f\0\0\0\x40", 8));  // 1, 2 of model.w
  ASSERT_NE(data, std::string::npos);
  bytes[data + 2] ^= 1;
  const auto flipped = checkpoint({"verify", write("flipped.pt", bytes)});
  EXPECT_EQ(flipped.exit_code, 3);
  EXPECT_THAT(flipped.out,
              AllOf(HasSubstr("damaged"), HasSubstr("tensor model.w"), HasSubstr("CRC-32")));
  const auto cut = checkpoint({"verify", write("cut.pt", bytes.substr(0, bytes.size() / 2))});
  EXPECT_EQ(cut.exit_code, 3);
  EXPECT_THAT(cut.out, HasSubstr("cut.pt: zip archive"));
}

TEST_F(CheckpointCommandTest, VerifyReadsAllFilesOfACheckpoint) {
  const std::string directory = save(1);
  const std::string model = directory + "/model.safetensors";
  std::string bytes = read_file(model);
  bytes.back() ^= 1;
  std::ofstream(model, std::ios::binary) << bytes;
  const auto result = checkpoint({"verify", directory});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, HasSubstr("model.safetensors: tensor 'fc.weight': its checksum is"));
}

TEST_F(CheckpointCommandTest, ConvertedWeightsAreTheSame) {
  const std::string out = file("model.safetensors"), again = file("again.pt");
  const auto first = checkpoint({"convert", corpus("state.pt"), out, "--select", "model"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(checkpoint({"convert", out, again}).exit_code, 0);
  const auto same = checkpoint({"diff", corpus("state.pt"), again, "--select-first", "model"});
  EXPECT_EQ(same.exit_code, 0) << same.out << same.err;
  EXPECT_EQ(same.out, "6 tensors are the same\n");
  EXPECT_EQ(checkpoint({"convert", corpus("libtorch.pt"), file("libtorch.safetensors")}).exit_code,
            0);
  EXPECT_EQ(checkpoint({"convert", save(2), file("step.pt")}).exit_code, 0);
  EXPECT_EQ(checkpoint({"diff", save(2), file("step.pt")}).exit_code, 0);
}

TEST_F(CheckpointCommandTest, ConvertReplacesNothingUnasked) {
  const std::string out = write("model.pt", "mine");
  const auto refused = checkpoint({"convert", corpus("state.pt"), out});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("model.pt: exists"), HasSubstr("--force")));
  EXPECT_EQ(read_file(out), "mine");
  EXPECT_EQ(checkpoint({"convert", corpus("state.pt"), out, "--force"}).exit_code, 0);
  EXPECT_EQ(checkpoint({"verify", out}).exit_code, 0);
  EXPECT_EQ(checkpoint({"convert", corpus("state.pt"), file("model.onnx")}).exit_code, 2);
  EXPECT_EQ(checkpoint({"convert", corpus("state.pt"), file("no/such/folder.pt")}).exit_code, 1);
}

TEST_F(CheckpointCommandTest, DamagedValuesAreNeitherConvertedNorCompared) {
  std::string bytes = read_file(corpus("state.pt"));
  const size_t data = bytes.find(std::string("\0\0\x80\x3f\0\0\0\x40", 8));  // 1, 2 of model.w
  ASSERT_NE(data, std::string::npos);
  bytes[data + 2] ^= 1;
  const std::string flipped = write("flipped.pt", bytes);
  const auto converted = checkpoint({"convert", flipped, file("out.safetensors")});
  EXPECT_EQ(converted.exit_code, 3);
  EXPECT_THAT(converted.err, AllOf(HasSubstr("flipped.pt: entry data/"), HasSubstr("CRC-32")));
  EXPECT_FALSE(fs::exists(file("out.safetensors")));
  const auto compared = checkpoint({"diff", corpus("state.pt"), flipped});
  EXPECT_EQ(compared.exit_code, 3);
  EXPECT_THAT(compared.err, HasSubstr("CRC-32"));
}

TEST_F(CheckpointCommandTest, NamesInFilesCannotSteerTheTerminal) {
  const std::string name = "fc\x1b[2J\nfile.pt: whole\u202e";
  const std::string escaped = "fc\\x1b[2J\\nfile.pt: whole\\u202e";
  const std::string one = file("one.pt"), two = file("two.pt");
  checkpoint::write_torch_file(one, checkpoint::state_dict_of({{name, at::full({2}, 1.0)}}));
  checkpoint::write_torch_file(two, checkpoint::state_dict_of({{name, at::full({2}, 2.0)}}));
  checkpoint::PyDict dict;
  dict.add(name + ".a", at::full({2}, 1.0));
  dict.add(name, checkpoint::state_dict_of({{"a", at::full({2}, 2.0)}}));
  checkpoint::write_torch_file(file("collide.pt"), dict);
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"inspect", one},
                                             {"diff", one, two},
                                             {"inspect", one, "--select", "absent"},
                                             {"convert", file("collide.pt"), file("out.pt")}}) {
    const auto result = checkpoint(words);
    const std::string all = result.out + result.err;
    EXPECT_THAT(all, HasSubstr(escaped)) << words[0];
    EXPECT_EQ(all.find('\x1b'), std::string::npos) << words[0];
    EXPECT_EQ(all.find("\u202e"), std::string::npos) << words[0];
  }
}

TEST_F(CheckpointCommandTest, VerifyGoesOnBehindAFileOfAnotherKind) {
  const std::string text = write("page.pt", "<html></html>\n");
  const auto mixed = checkpoint({"verify", text, corpus("state.pt"), corpus("legacy.pt")});
  EXPECT_EQ(mixed.exit_code, 2);
  EXPECT_THAT(mixed.err, HasSubstr("page.pt: is a text file"));
  EXPECT_THAT(mixed.out, AllOf(HasSubstr("state.pt: whole"), HasSubstr("legacy.pt: whole")));
  EXPECT_EQ(checkpoint({"verify", file("absent"), text}).exit_code, 3);
  EXPECT_EQ(checkpoint({"verify", text, file("absent")}).exit_code, 3);
}

TEST_F(CheckpointCommandTest, OutputThatGetsLostIsAnError) {
  for (const char* command : {"inspect", "verify"}) {
    const auto result = run({"/bin/sh", "-c", R"("$0" checkpoint "$1" "$2" > /dev/full)",
                             BELLOWS_PROGRAM, command, corpus("state.pt")},
                            with_libtorch());
    EXPECT_EQ(result.exit_code, 1) << command;
    EXPECT_THAT(result.err, HasSubstr("standard output cannot be written"));
  }
}

TEST_F(CheckpointCommandTest, DamagedBeginningsAreDamageAndNoOtherKind) {
  const std::string whole = file("whole.safetensors");
  ASSERT_EQ(checkpoint({"convert", corpus("state.pt"), whole, "--select", "model"}).exit_code, 0);
  const std::string header = read_file(whole), archive = read_file(corpus("state.pt"));
  for (size_t at = 0; at < 8; ++at) {
    std::string bytes = header;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x80);
    const auto result = checkpoint({"verify", write("damaged.safetensors", bytes)});
    EXPECT_EQ(result.exit_code, 3) << at << ": " << result.err;
  }
  for (size_t at = 0; at < 4; ++at) {
    std::string bytes = archive;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    const auto result = checkpoint({"verify", write("damaged.pt", bytes)});
    EXPECT_EQ(result.exit_code, 3) << at << ": " << result.err;
  }
  EXPECT_EQ(checkpoint({"verify", write("text", "some JSO{\"a\": 1}")}).exit_code, 2);
}

TEST_F(CheckpointCommandTest, LinksInACircleAreOfTheEnvironment) {
  fs::create_symlink("circle", file("circle"));
  for (const char* command : {"inspect", "verify"}) {
    const auto result = checkpoint({command, file("circle")});
    EXPECT_EQ(result.exit_code, 3) << command;
    EXPECT_THAT(result.out + result.err, HasSubstr("circle: open: Too many levels"));
  }
}

TEST_F(CheckpointCommandTest, ToleranceIsAFiniteNumber) {
  for (const char* tolerance : {"-1", "inf", "nan", "abc"}) {
    const auto result =
        checkpoint({"diff", corpus("state.pt"), corpus("state.pt"), "--tolerance", tolerance});
    EXPECT_EQ(result.exit_code, 2) << tolerance;
    EXPECT_THAT(result.err, HasSubstr("expected a finite number of at least 0")) << tolerance;
  }
}

TEST_F(CheckpointCommandTest, ConvertReplacesRegularFilesAlone) {
  const std::string target = write("target.pt", "mine"), link = file("link.pt"),
                    pipe = file("pipe.pt");
  fs::create_symlink(target, link);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& [out, what] : {std::pair(link, "a symbolic link"), {pipe, "no regular file"}}) {
    const auto result = checkpoint({"convert", corpus("state.pt"), out, "--force"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(what));
  }
  EXPECT_TRUE(fs::is_symlink(link) && fs::is_fifo(pipe));
  EXPECT_EQ(read_file(target), "mine");
}

TEST_F(CheckpointCommandTest, PackedTypesHaveOneShapeInAllFormats) {
  const std::string header = R"({"w":{"dtype":"F4","shape":[2,8],"data_offsets":[0,8]}})";
  const std::string length = {static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  const std::string packed = write("packed.safetensors", length + header + "12345678");
  ASSERT_EQ(checkpoint({"convert", packed, file("packed.pt")}).exit_code, 0);
  const auto same = checkpoint({"diff", packed, file("packed.pt")});
  EXPECT_EQ(same.exit_code, 0) << same.out << same.err;
  EXPECT_THAT(checkpoint({"inspect", packed}).out, HasSubstr("[2, 4]"));
}

TEST_F(CheckpointCommandTest, NamesThatComeTwiceAreRefused) {
  const std::string collide = file("collide.pt");
  checkpoint::PyDict dict;
  dict.add("a.b", at::full({2}, 1.0));
  dict.add("a", checkpoint::state_dict_of({{"b", at::full({2}, 2.0)}}));
  checkpoint::write_torch_file(collide, dict);
  for (const char* out : {"out.pt", "out.safetensors"}) {
    const auto converted = checkpoint({"convert", collide, file(out)});
    EXPECT_EQ(converted.exit_code, 2) << out;
    EXPECT_THAT(converted.err, HasSubstr("two tensors come under the name 'a.b'"));
    EXPECT_FALSE(fs::exists(file(out)));
  }
  EXPECT_EQ(checkpoint({"diff", collide, collide}).exit_code, 2);
  EXPECT_EQ(checkpoint({"inspect", collide}).exit_code, 0);
  EXPECT_EQ(checkpoint({"verify", collide}).exit_code, 0);
}

TEST_F(CheckpointCommandTest, DiffTellsEveryDifference) {
  const auto state = [](double value, at::IntArrayRef sizes) {
    return checkpoint::state_dict_of({{"same", at::full({2}, 1.0)},
                                      {"value", at::full({3}, value)},
                                      {"shape", at::full(sizes, 1.0)},
                                      {value > 1 ? "new" : "old", at::full({}, 1.0)}});
  };
  checkpoint::write_torch_file(file("a.pt"), state(1.0, {2}));
  checkpoint::write_torch_file(file("b.pt"), state(1.5, {2, 1}));
  const auto result = checkpoint({"diff", file("a.pt"), file("b.pt")});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.out,
            "only in the first: old float32 []\n"
            "shape: float32 [2] against float32 [2, 1]\n"
            "value: 3 values differ in float32 [3], the largest by 0.5\n"
            "only in the second: new float32 []\n"
            "4 tensors differ\n");
  const auto tolerant = checkpoint({"diff", file("a.pt"), file("b.pt"), "--tolerance", "0.5"});
  EXPECT_THAT(tolerant.out, Not(HasSubstr("value:")));
}

}  // namespace
}  // namespace bellows::testing
