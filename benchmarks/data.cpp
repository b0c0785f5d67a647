// B3 to B6: from data to batches. Usage: bench_data images|augmented workers;
// bench_data tokens|first FILE workers; bench_data photographs FOLDER workers
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include "bellows/core/file.h"
#include "bellows/data/augment.h"
#include "bellows/data/image.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/data/tokens.h"
#include "bellows/data/transforms.h"
#include "bellows/device/init.h"
#include "bellows/device/seed.h"
#include "benchmarks/measure.h"

namespace {
using namespace bellows;
using data::Loader;

constexpr int64_t kImages = 50'000, kImageBytes = 3 * 32 * 32, kBatch = 256;
constexpr int kEpochs = 5;
const std::vector<double> kMean = {0.4914, 0.4822, 0.4465}, kStd = {0.2470, 0.2435, 0.2616};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Microseconds a sample: the median of `epochs` epochs, after the first one.
double epoch_time(Loader& loader, int epochs) {
  std::vector<double> times;
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    const double begin = now();
    loader.start(epoch);
    int64_t samples = 0;
    while (const auto batch = loader.next()) samples += batch->samples;
    times.push_back((now() - begin) / static_cast<double>(samples) * 1e6);
  }
  std::nth_element(times.begin(), times.begin() + epochs / 2, times.end());
  return times[static_cast<size_t>(epochs / 2)];
}

std::unique_ptr<Loader> shuffled(std::shared_ptr<const data::Dataset> dataset, int64_t batch,
                                 int64_t workers) {
  const auto order = std::make_shared<data::RandomSampler>(dataset->size(), 1);
  return data::make_loader(std::move(dataset), order,
                           {.batch_size = batch, .workers = workers, .prefetch = 4});
}

/// Copies so many bytes a sample to a batch and, in batches, `written` zeros: microseconds a
/// sample.
double copy_time(const at::Tensor& from, int64_t written) {
  std::vector<char> batch(kBatch * kImageBytes), zeros(static_cast<size_t>(kBatch * written) + 1);
  const auto* bytes = static_cast<const char*>(from.const_data_ptr());
  return bench::median_microseconds(
             1, 5, 1,
             [&] {
               for (int64_t i = 0; i + kBatch <= kImages; i += kBatch) {
                 std::memcpy(batch.data(), bytes + i * kImageBytes, batch.size());
                 std::memset(zeros.data(), static_cast<int>(i), zeros.size());
               }
             }) /
         kImages;
}

int images(bool augmented, int64_t workers) {
  seed_everything(0);
  const auto plain = std::make_shared<data::TensorDataset>(std::vector<at::Tensor>{
      at::randint(256, {kImages, 3, 32, 32}, at::kByte), at::arange(kImages)});
  std::shared_ptr<const data::Dataset> dataset = plain;
  if (augmented) {
    dataset = data::map_batches(plain, data::random_crop_flip_normalize({.height = 32,
                                                                         .width = 32,
                                                                         .padding = 4,
                                                                         .flip_probability = 0.5,
                                                                         .mean = kMean,
                                                                         .std = kStd}));
  }
  const auto loader = shuffled(dataset, kBatch, workers);
  double digest = 0;
  int64_t number = 0;
  while (const auto batch = loader->next()) {
    const at::Tensor input = batch->data[0].tensor();
    digest += augmented ? input.square().mean().item<double>()
                        : static_cast<double>(++number) *
                              static_cast<double>(input[0].sum().item<int64_t>());
  }
  bench::print_result(epoch_time(*loader, kEpochs), digest,
                      copy_time(plain->tensors()[0], augmented ? 4 * kImageBytes : 0));
  return 0;
}

constexpr int64_t kContext = 1024, kTokenBatch = 16, kTokenBatches = 2000;

std::unique_ptr<Loader> token_loader(const std::string& file, int64_t workers) {
  return shuffled(std::make_shared<data::TokenDataset>(std::vector<std::filesystem::path>{file},
                                                       data::TokenOptions{.context = kContext}),
                  kTokenBatch, workers);
}

/// Nanoseconds a token, of copying as many bytes as the batches have.
double widen_time() {
  std::vector<int64_t> from(kTokenBatch * kContext, 1), to(from.size());
  return bench::median_microseconds(
             10, 5, 2000,
             [&] { std::memcpy(to.data(), from.data(), from.size() * sizeof(int64_t)); }) *
         1000 / static_cast<double>(from.size()) * 2;  // input and target
}

int tokens(const std::string& file, int64_t workers) {
  const auto loader = token_loader(file, workers);
  double digest = 0;
  for (int64_t i = 0; i < kTokenBatches; ++i) {
    const auto batch = loader->next();
    digest += static_cast<double>(i % 7) *
              static_cast<double>(batch->data[1].tensor()[0][0].item<int64_t>());
  }
  loader->start(1);
  const double begin = now();
  for (int64_t i = 0; i < kTokenBatches; ++i) loader->next();
  bench::print_result((now() - begin) * 1e9 / (kTokenBatches * kTokenBatch * kContext), digest,
                      widen_time());
  return 0;
}

int first(const std::string& file, int64_t workers) {
  const double begin = now();
  const auto loader = token_loader(file, workers);
  const auto batch = loader->next();
  const double took = (now() - begin) * 1e3;
  bench::print_result(took, static_cast<double>(batch->data[0].tensor().sum().item<int64_t>()));
  return 0;
}

int photographs(const std::string& folder, int64_t workers) {
  const auto files = std::make_shared<data::ImageFolder>(folder);
  const auto resized = data::map(files, data::on_image([](const at::Tensor& image, data::Random&) {
                                   return data::resize(image, 224, 224);
                                 }));
  const auto loader =
      data::make_loader(resized, std::make_shared<data::SequentialSampler>(files->size()),
                        {.batch_size = 32, .workers = workers});
  double digest = 0;
  while (const auto batch = loader->next())
    digest += batch->data[0].tensor().to(at::kFloat).mean().item<double>();
  const double value = epoch_time(*loader, 1);
  std::vector<std::string> some;
  for (int64_t i = 0; i < files->size(); i += 10) some.push_back(read_file(files->source(i)));
  const double decoding = bench::median_microseconds(1, 3, 1, [&] {
    for (const std::string& bytes : some) data::decode_image(std::as_bytes(std::span(bytes)));
  });
  bench::print_result(value, digest, decoding / static_cast<double>(some.size()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto is = [&](const char* word, size_t count) {
    return words.size() == count && words[0] == word;
  };
  init();
  if (is("images", 2) || is("augmented", 2))
    return images(words[0] == "augmented", std::stoll(words[1]));
  if (is("tokens", 3)) return tokens(words[1], std::stoll(words[2]));
  if (is("first", 3)) return first(words[1], std::stoll(words[2]));
  if (is("photographs", 3)) return photographs(words[1], std::stoll(words[2]));
  std::cerr
      << "usage: bench_data images|augmented N | tokens|first FILE N | photographs FOLDER N\n";
  return 2;
}
