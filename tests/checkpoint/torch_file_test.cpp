// torch.save files and other kinds from C++: values, ties, wrong calls, failing disks. Exchange
// with Python itself is in tests/python/torch_exchange.py.
#include "bellows/checkpoint/torch_file.h"

#include <algorithm>
#include <cerrno>
#include <gmock/gmock.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "bellows/checkpoint/python_optimizer.h"
#include "bellows/checkpoint/safetensors.h"
#include "bellows/checkpoint/weights_file.h"
#include "bellows/core/file.h"
#include "bellows/nn/from_torchscript.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"
#include "tests/checkpoint/fixture.h"

namespace bellows::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

fs::path corpus(const std::string& name) {
  return fs::path(CORPUS) / "torch" / name;
}

class TorchFileTest : public ::testing::Test {
 protected:
  TorchFileTest() : folder_(new_directory()), path_(folder_ / "file.pt") {}
  ~TorchFileTest() override { fs::remove_all(folder_); }
  fs::path folder_, path_;
};

TEST_F(TorchFileTest, ValuesComeBackAsTheyWere) {
  PyDict dict;
  dict.add("list", PyList{1, 2.5, true, {}, "text"});
  dict.add(7, PyTuple{{PyBytes{"\xff"}, std::complex<double>(1, -2)}});
  write_torch_file(path_, dict);
  const PyValue read = read_torch_file(path_);
  EXPECT_EQ(read.at("list").items()[1].number(), 2.5);
  EXPECT_TRUE(read.at("list").items()[3].is_none());
  EXPECT_EQ(read.dict().items[1].first.integer(), 7);
  const PyValue& parts = read.dict().items[1].second;
  EXPECT_EQ(std::get<PyBytes>(parts.items()[0].variant()).bytes, "\xff");
  EXPECT_EQ(std::get<std::complex<double>>(parts.items()[1].variant()),
            std::complex<double>(1, -2));
  EXPECT_THAT(error_of([&] { read.at("lits"); }), AllOf(HasSubstr("'lits'"), HasSubstr("list")));
}

TEST_F(TorchFileTest, TiedTensorsStayTiedAndAreWrittenOnce) {
  const at::Tensor shared = at::zeros({1 << 16});
  write_torch_file(path_, state_dict_of({{"a", shared}, {"b", shared.narrow(0, 3, 4)}}));
  EXPECT_LT(fs::file_size(path_), (4U << 16) + 5000);
  const NamedTensors read = flatten(read_torch_file(path_));
  read[0].second.select(0, 4).fill_(5);
  EXPECT_EQ(read[1].second.select(0, 1).item<float>(), 5);
}

TEST_F(TorchFileTest, NamesAreAsPythonPrintsKeysAndComeOnce) {
  const at::Tensor one = at::ones({1});
  PyDict dict;
  for (const PyValue& key : {PyValue(), PyValue(true), PyValue(2.5), PyValue(2.0), PyValue(7),
                             PyValue(PyTuple{{"a", 2}}), PyValue(PyTuple{{1}})}) {
    dict.add(key, one);
  }
  const std::vector<std::string> expected = {"None", "True", "2.5", "2.0", "7", "('a', 2)", "(1,)"};
  write_torch_file(path_, dict);
  const NamedTensors listed = read_weights_file(path_), flat = flatten(read_torch_file(path_));
  ASSERT_THAT(listed, SizeIs(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(listed[i].first, expected[i]);
    EXPECT_EQ(flat[i].first, expected[i]);
  }

  EXPECT_THAT(error_of([&] { state_dict_of({{"w", one}, {"w", one}}); }), HasSubstr("'w'"));
  PyDict twice;
  twice.add("w", one);
  twice.add("w", one);
  EXPECT_THAT(error_of([&] { write_torch_file(folder_ / "twice.pt", twice); }),
              HasSubstr("has the key 'w' twice"));
  EXPECT_FALSE(fs::exists(folder_ / "twice.pt"));
  PyDict collide;
  collide.add(1, one);
  collide.add("1", one);
  write_torch_file(path_, collide);
  EXPECT_THAT(error_of([&] { read_weights_file(path_); }),
              HasSubstr("two tensors come under the name '1'"));
}

TEST_F(TorchFileTest, WhatIsReadIsComparedWithItsChecksum) {
  write_torch_file(path_, state_dict_of({{"weight", at::full({4}, 1.5)}}));
  const std::string whole = read_file(path_);
  const size_t value = whole.find(std::string("\0\0\xc0\x3f\0\0\xc0\x3f", 8));
  const size_t name = whole.find("weight");
  ASSERT_NE(value, std::string::npos);
  ASSERT_NE(name, std::string::npos);
  for (const auto& [place, entry] : {std::pair(value, "entry data/0"), {name, "data.pkl"}}) {
    std::string bytes = whole;
    bytes[place] ^= 1;
    write_file_atomically(path_, bytes);
    EXPECT_THAT(error_of([&] { read_torch_file(path_); }),
                AllOf(HasSubstr(entry), HasSubstr("its CRC-32 is")));
    EXPECT_THROW(read_weights_file(path_), CorruptFileError);
  }

  // Archives may go without: all of them are then 0.
  std::string without = whole;
  for (size_t at = 0; (at = without.find("PK\1\2", at)) != std::string::npos; ++at) {
    without.replace(at + 16, 4, 4, '\0');
  }
  without[value] ^= 1;
  write_file_atomically(path_, without);
  EXPECT_NE(flatten(read_torch_file(path_)).at(0).second.select(0, 0).item<float>(), 1.5F);
}

TEST_F(TorchFileTest, NestsOfAnyDepthAreRefusedAndFreed) {
  const auto nest = [](int depth) {
    PyValue value = at::ones({1});
    for (int i = 0; i < depth; ++i) {
      PyList list;
      list.push_back(std::move(value));
      value = std::move(list);
    }
    return value;
  };
  write_torch_file(path_, nest(199));
  EXPECT_THAT(flatten(read_torch_file(path_)), SizeIs(1));
  for (const int depth : {200, 1'000'000}) {
    EXPECT_THAT(error_of([&] { write_torch_file(folder_ / "deep.pt", nest(depth)); }),
                HasSubstr("nested deeper than 200"));
  }
  EXPECT_FALSE(fs::exists(folder_ / "deep.pt"));
}

TEST_F(TorchFileTest, EveryKindOfWeightsIsLoadedIntoAModel) {
  const auto model_of = [](const std::string& name, at::IntArrayRef sizes) {
    return nn::from_function([](const Tree& input) { return input; }, {{name, at::zeros(sizes)}});
  };
  const auto weight = [](const nn::Model& model) { return model.state_dict()[0].second; };
  const nn::Model script = model_of("w", {1});
  load_weights(corpus("script.pt"), script);
  EXPECT_TRUE(at::equal(weight(script), at::ones({1})));

  const at::Tensor value = at::arange(3, at::kFloat);
  write_torch_file(path_, state_dict_of({{"fc", value}}));
  const nn::Model model = model_of("fc", {3});
  load_weights(path_, model);
  EXPECT_TRUE(at::equal(weight(model), value));

  EXPECT_THAT(read_weights_file(corpus("libtorch.pt")), SizeIs(7));
  for (const char* name : {"state.pt", "legacy.pt", "state4.pt"}) {
    EXPECT_TRUE(at::equal(read_weights_file(corpus(name), "model").at(0).second,
                          at::arange(6, at::kFloat).view({2, 3})))
        << name;
  }
}

TEST_F(TorchFileTest, WrongCallsAreAnsweredWithTheKindAndTheRightCall) {
  FakeRun run(1);
  write_safetensors(folder_ / "w.safetensors", {{"a", at::ones({1})}});
  EXPECT_THAT(error_of([&] { read_torch_file(folder_ / "w.safetensors"); }),
              AllOf(HasSubstr("is a safetensors file"), HasSubstr("read_safetensors")));
  EXPECT_THAT(error_of([&] { read_torch_file(corpus("script.pt")); }),
              AllOf(HasSubstr("is a TorchScript archive"), HasSubstr("load_torchscript")));
  EXPECT_THAT(error_of([&] { read_safetensors(corpus("state.pt")); }),
              AllOf(HasSubstr("torch.save"), HasSubstr("read_torch_file")));
  EXPECT_THAT(error_of([&] { nn::load_torchscript(corpus("state.pt")); }),
              AllOf(HasSubstr("torch.save"), HasSubstr("read_torch_file")));
  EXPECT_THAT(error_of([&] { nn::load_torchscript(corpus("libtorch.pt")); }),
              HasSubstr("torch::save"));
  EXPECT_THAT(error_of([&] { load(corpus("state.pt"), run.model(), run.mutable_parts()); }),
              AllOf(HasSubstr("torch.save"), HasSubstr("expected a checkpoint directory")));
  EXPECT_THAT(error_of([&] { load_weights(corpus("module.pt"), run.model()); }),
              HasSubstr("state_dict()"));
  EXPECT_THAT(error_of([&] { load_weights(corpus("libtorch_optimizer.pt"), run.model()); }),
              HasSubstr("an optimizer saved by LibTorch"));
}

TEST_F(TorchFileTest, WhatFilesLackIsRefusedBeforeTheFileIsTouched) {
  const auto refused = [&](const at::Tensor& tensor) {
    return error_of([&] { write_torch_file(path_, state_dict_of({{"x", tensor}})); });
  };
  EXPECT_THAT(refused({}), HasSubstr("'x' is an undefined tensor"));
  EXPECT_THAT(refused(at::ones({2, 2}).to_sparse()), HasSubstr("'x' is sparse"));
  EXPECT_THAT(refused(at::empty({2}, at::TensorOptions(at::kMeta))), HasSubstr("meta device"));
  EXPECT_THAT(error_of([&] { write_torch_file(path_, "\xff"); }), HasSubstr("not UTF-8"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

// The n-th call of a write fails.
class FailingDisk : public FileSystem {
 public:
  explicit FailingDisk(int at) : left_(at) {}
  ssize_t write(int fd, const void* data, size_t bytes) override {
    return fails() ? -1 : FileSystem::write(fd, data, bytes);
  }
  int fsync(int fd) override { return fails() ? -1 : FileSystem::fsync(fd); }
  int rename(const char* from, const char* to) override {
    return fails() ? -1 : FileSystem::rename(from, to);
  }
  bool reached() const { return left_ < 0; }

 private:
  bool fails() {
    errno = ENOSPC;
    return left_-- == 0;
  }
  int left_;
};

TEST_F(TorchFileTest, AFailingDiskIsAnErrorAndLeavesWhatWasThere) {
  write_torch_file(path_, "before");
  const PyValue value = state_dict_of({{"a", at::ones({100})}, {"b", at::ones({7})}});
  for (int call = 0;; ++call) {
    FailingDisk disk(call);
    std::string error;
    {
      const ScopedFileSystem scoped(disk);
      error = error_of([&] { write_torch_file(path_, value); });
    }
    if (!disk.reached()) {
      EXPECT_GT(call, 5);
      break;
    }
    const auto names_it = AnyOf(HasSubstr(path_.string() + ":"),
                                HasSubstr(folder_.string() + ": fsync of the directory"));
    EXPECT_THAT(error, AllOf(names_it, HasSubstr("No space left"))) << call;
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << call;
    const PyValue there = read_torch_file(path_);
    EXPECT_TRUE(there.is<std::string>() || there.is<PyDict>()) << call;
  }
  EXPECT_THAT(flatten(read_torch_file(path_)), SizeIs(2));
}

TEST_F(TorchFileTest, AnOptimizersStateGoesToPythonsFormAndBack) {
  const auto trained = [](double start) {
    at::Tensor weight = at::full({3}, start).set_requires_grad(true);
    weight.mutable_grad() = at::ones({3});
    return weight;
  };
  const at::Tensor first = trained(1), second = trained(2);
  using AdamWGroups = std::vector<optim::ParamGroup<optim::AdamWOptions>>;
  AdamWGroups groups(2);
  groups[0] = {{{"a", first}}, {.lr = 3e-4, .betas = {0.5, 0.75}}};
  groups[1] = {{{"b", second}}, {.weight_decay = 0.5, .amsgrad = true}};
  optim::AdamW optimizer(groups);
  optimizer.step();
  write_torch_file(path_, to_python_optimizer(optimizer));
  AdamWGroups others(2);
  others[0].parameters = {{"a", trained(1)}};
  others[1].parameters = {{"b", trained(2)}};
  optim::AdamW other(others);
  load_python_optimizer(read_torch_file(path_), other);
  EXPECT_EQ(other.options(0).lr, 3e-4);
  EXPECT_EQ(other.options(0).betas[1], 0.75);
  EXPECT_TRUE(other.options(1).amsgrad);
  EXPECT_TRUE(at::equal(other.state_dict().at("state").at("b").at("max_exp_avg_sq").tensor(),
                        optimizer.state_dict().at("state").at("b").at("max_exp_avg_sq").tensor()));

  optim::AdamW one_group(NamedTensors{{"a", trained(1)}, {"b", trained(2)}});
  EXPECT_THAT(error_of([&] { load_python_optimizer(read_torch_file(path_), one_group); }),
              HasSubstr("it has 2 groups, expected 1"));
  std::vector<optim::ParamGroup<optim::SGDOptions>> plain(2);
  plain[0].parameters = {{"a", trained(1)}};
  plain[1].parameters = {{"b", trained(2)}};
  optim::SGD sgd(plain);
  EXPECT_THAT(error_of([&] { load_python_optimizer(read_torch_file(path_), sgd); }),
              HasSubstr("no 'momentum'"));
}

}  // namespace
}  // namespace bellows::checkpoint
