// Checkpoints whose weights are spread over files, as several processes would write them.
#include <fstream>
#include <gmock/gmock.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include "bellows/checkpoint/manifest.h"
#include "bellows/checkpoint/safetensors_io.h"
#include "tests/checkpoint/fixture.h"

namespace bellows::checkpoint {
namespace {

using ::testing::HasSubstr;

class SlicesTest : public CheckpointTest {
 protected:
  SlicesTest() { fs::create_directories(directory()); }
  fs::path directory() const { return root() / "step-00000001"; }

  void add_file(const std::string& name, const NamedTensors& tensors) {
    manifest.files[name] = write_safetensors_hashed(directory() / name, tensors);
    manifest.parts["model"].files.push_back(name);
  }
  void write_manifest() const {
    std::ofstream(directory() / kManifestName) << format_manifest(manifest);
  }
  /// Two ranks: rows 0 to 3 and 4 to 5 of "fc.weight", a bias whole in the first file.
  void two_ranks() {
    add_file("model-00001-of-00002.safetensors",
             {{"fc.weight", whole.narrow(0, 0, 4)}, {"fc.bias", at::full({2}, 3.0)}});
    add_file("model-00002-of-00002.safetensors", {{"fc.weight", whole.narrow(0, 4, 2)}});
    manifest.parts["model"].sliced["fc.weight"] = {
        .shape = {6, 4},
        .slices = {{"model-00001-of-00002.safetensors", {0, 0}},
                   {"model-00002-of-00002.safetensors", {4, 0}}}};
  }
  std::string refusal() {
    write_manifest();
    at::Tensor weight = at::full({6, 4}, -1.0), bias = at::full({2}, -1.0);
    const std::string error = error_of([&] { load(directory(), model(weight, bias), {}); });
    EXPECT_TRUE(at::equal(weight, at::full({6, 4}, -1.0)));
    return error;
  }
  static nn::Model model(const at::Tensor& weight, const at::Tensor& bias) {
    return nn::from_function([](const Tree& input) { return input; },
                             {{"fc.weight", weight}, {"fc.bias", bias}});
  }
  Slice& slice(size_t n) { return manifest.parts["model"].sliced["fc.weight"].slices[n]; }

  at::Tensor whole = at::arange(24, at::kFloat).view({6, 4});
  Manifest manifest{.step = 1, .files = {}, .parts = {}};
};

TEST_F(SlicesTest, WeightsOfSeveralFilesArePutTogether) {
  two_ranks();
  write_manifest();
  at::Tensor weight = at::empty({6, 4}), bias = at::empty({2});
  load(directory(), model(weight, bias), {});
  EXPECT_TRUE(at::equal(weight, whole));
  EXPECT_TRUE(at::equal(bias, at::full({2}, 3.0)));
  weight.zero_();
  load_weights(directory(), model(weight, bias));
  EXPECT_TRUE(at::equal(weight, whole));
  verify(directory());
  EXPECT_EQ(latest(root()), directory());
}

TEST_F(SlicesTest, SlicesMayCutAnyDimension) {
  const std::vector<std::vector<int64_t>> offsets = {{0, 0}, {0, 3}, {2, 0}, {2, 3}};
  SlicedTensor sliced{.shape = {6, 4}, .slices = {}};
  for (size_t n = 0; n < offsets.size(); ++n) {
    const std::string file = "model-" + std::to_string(n) + ".safetensors";
    const int64_t rows = offsets[n][0] == 0 ? 2 : 4, columns = offsets[n][1] == 0 ? 3 : 1;
    NamedTensors tensors = {
        {"fc.weight", whole.narrow(0, offsets[n][0], rows).narrow(1, offsets[n][1], columns)}};
    if (n == 0) tensors.emplace_back("fc.bias", at::full({2}, 3.0));
    add_file(file, tensors);
    sliced.slices.push_back({file, offsets[n]});
  }
  manifest.parts["model"].sliced["fc.weight"] = sliced;
  write_manifest();
  at::Tensor weight = at::empty({6, 4}), bias = at::empty({2});
  load(directory(), model(weight, bias), {});
  EXPECT_TRUE(at::equal(weight, whole));
}

TEST_F(SlicesTest, SlicesThatDoNotMakeUpTheTensorAreRefused) {
  two_ranks();
  const Manifest good = manifest;
  slice(1).offset = {3, 0};
  EXPECT_THAT(refusal(), HasSubstr("'fc.weight': the slices at [0, 0] and [3, 0] overlap"));
  slice(1).offset = {5, 0};
  EXPECT_THAT(refusal(), HasSubstr("got a slice of shape [2, 4] at [5, 0]"));
  slice(1).offset = {4};
  EXPECT_THAT(refusal(), HasSubstr("at [4] in model-00002"));
  slice(1).offset = {-1, 0};
  EXPECT_THAT(refusal(), HasSubstr("expected one within shape [6, 4]"));
  manifest = good;
  manifest.parts["model"].sliced["fc.weight"].shape = {7, 4};
  EXPECT_THAT(refusal(), HasSubstr("its slices hold 24 values, expected 28"));
  manifest.parts["model"].sliced["fc.weight"].shape = {int64_t{1} << 40, 4};
  EXPECT_THAT(refusal(), HasSubstr("larger than the checkpoint's files"));
  manifest = good;
  manifest.parts["model"].sliced["fc.weight"].slices.pop_back();
  EXPECT_THAT(refusal(), HasSubstr("its slice in model-00002-of-00002.safetensors is not listed"));
  manifest = good;
  manifest.parts["model"].files.pop_back();
  EXPECT_THAT(refusal(), HasSubstr("got 1 of 2 slices"));
  manifest = good;
  manifest.files.erase("model-00002-of-00002.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("the file 'model-00002-of-00002.safetensors' is not listed"));
}

TEST_F(SlicesTest, FilesOutsideTheCheckpointAreRefused) {
  two_ranks();
  manifest.files["../x"] = manifest.files.begin()->second;
  EXPECT_THAT(refusal(), HasSubstr("got the file '../x', expected a plain name"));
}

}  // namespace
}  // namespace bellows::checkpoint
