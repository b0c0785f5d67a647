// B10: a checkpoint of 512 MiB of weights and AdamW's state, 1.5 GiB in all. Usage:
// bench_checkpoints save|stall|load FOLDER
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "bellows/checkpoint/async_saver.h"
#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/safetensors.h"
#include "bellows/core/file.h"
#include "bellows/device/init.h"
#include "bellows/optim/adamw.h"
#include "benchmarks/measure.h"

namespace {
using namespace bellows;
namespace fs = std::filesystem;

constexpr int64_t kCount = 128, kSize = 1 << 20;  // parameters, and values in each
constexpr int kRounds = 5;

// Values that differ from tensor to tensor, so that no file is full of zeros.
NamedTensors parameters() {
  NamedTensors tensors;
  for (int64_t i = 0; i < kCount; ++i) {
    tensors.emplace_back("p" + std::to_string(i),
                         at::full({kSize}, 1.0 + static_cast<double>(i)).requires_grad_());
  }
  return tensors;
}

double milliseconds(const std::function<void()>& body) {
  return bench::median_microseconds(0, 1, 1, body) / 1000;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Copies as many bytes by as many threads as LibTorch uses, into `target`.
void copy_bytes(char* target, const char* source, size_t bytes) {
  const auto threads = static_cast<size_t>(at::get_num_threads());
  std::vector<std::thread> others;
  for (size_t i = 0; i < threads; ++i) {
    const size_t begin = bytes * i / threads, end = bytes * (i + 1) / threads;
    others.emplace_back([=] { std::memcpy(target + begin, source + begin, end - begin); });
  }
  for (std::thread& thread : others) thread.join();
}

// As many tensors as there are parameters, copied by as many threads as LibTorch uses.
std::vector<at::Tensor> copied(const std::string& source) {
  std::vector<at::Tensor> tensors;
  for (int64_t i = 0; i < kCount; ++i) tensors.push_back(at::empty({kSize}));
  const auto threads = static_cast<size_t>(at::get_num_threads());
  std::vector<std::thread> others;
  for (size_t thread = 0; thread < threads; ++thread) {
    others.emplace_back([&, thread] {
      for (size_t i = thread; i < tensors.size(); i += threads)
        std::memcpy(tensors[i].mutable_data_ptr(), source.data(), source.size());
    });
  }
  for (std::thread& thread : others) thread.join();
  return tensors;
}

void raw_save(const fs::path& path, const std::string& bytes) {
  fs::remove(path);
  OutputFile file(fs::path(path.string() + ".part"));
  for (int i = 0; i < 3; ++i) file.write(bytes);
  file.finish();
  rename_durably(path.string() + ".part", path);
}

void sum_and_print(const std::vector<double>& ours, const std::vector<double>& limits,
                   const NamedTensors& tensors) {
  double digest = 0;
  for (const auto& [name, tensor] : tensors)
    digest += tensor.detach().sum(at::kDouble).item<double>();
  bench::print_result(median(ours), digest, median(limits));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: bench_checkpoints save|stall|load FOLDER\n";
    return 2;
  }
  init();
  const std::string what = argv[1];
  const fs::path folder = argv[2];
  fs::remove_all(folder);
  fs::create_directories(folder);
  NamedTensors tensors = parameters();
  const nn::Model model = nn::from_function([](const Tree& input) { return input; }, tensors);
  std::vector<double> ours, limits;
  if (what == "load") {
    const fs::path file = folder / "model.safetensors";
    checkpoint::write_safetensors(file, model.state_dict());
    const std::string source(4 * kSize, 'x');
    for (int round = 0; round < kRounds; ++round) {
      tensors.clear();  // as in Python: the memory before is free again
      ours.push_back(milliseconds([&] { tensors = checkpoint::read_safetensors(file); }));
    }
    for (int round = 0; round < kRounds; ++round) {
      std::vector<at::Tensor> copies;
      limits.push_back(milliseconds([&] { copies = copied(source); }));
    }
    sum_and_print(ours, limits, tensors);
    fs::remove_all(folder);
    return 0;
  }
  optim::AdamW optimizer(tensors);
  for (const auto& [name, parameter] : tensors) parameter.mutable_grad() = at::zeros({kSize});
  optimizer.step();
  optimizer.zero_grad();
  const checkpoint::Parts parts = {{"optimizer", &optimizer}};
  if (what == "save") {
    const std::string bytes(4 * kCount * kSize, 'x');
    for (int round = 0; round < kRounds; ++round) {
      ours.push_back(milliseconds([&] { checkpoint::save(folder / "run", 1, model, parts); }));
      fs::remove_all(folder / "run");
      limits.push_back(milliseconds([&] { raw_save(folder / "raw", bytes); }));
      fs::remove(folder / "raw");
    }
  } else {
    const std::string source(3 * 4 * kCount * kSize, 'x');
    std::string target(source.size(), 'y');
    checkpoint::AsyncSaver saver;
    for (int round = 0; round < kRounds + 1; ++round) {
      const double stall = milliseconds([&] { saver.save(folder / "run", round, model, parts); });
      saver.wait();
      if (round > 0) ours.push_back(stall);  // the first one allocates
      checkpoint::keep_last(folder / "run", 1);
      limits.push_back(
          milliseconds([&] { copy_bytes(target.data(), source.data(), source.size()); }));
    }
  }
  sum_and_print(ours, limits, tensors);
  fs::remove_all(folder);
}
