#include "bellows/data/cifar.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/cifar_file.h"

namespace bellows::data {
namespace {

std::vector<std::string> file_names(const CifarOptions& options) {
  if (options.classes == 100) return {options.train ? "train.bin" : "test.bin"};
  if (!options.train) return {"test_batch.bin"};
  std::vector<std::string> names;
  for (int i = 1; i <= 5; ++i) names.push_back(concat("data_batch_", i, ".bin"));
  return names;
}

CifarFile read_part(const CifarOptions& options, const std::string& name) {
  try {
    return read_cifar_file(options.root / name, options.classes == 100 ? 2 : 1, options.classes);
  } catch (const FileError& error) {
    if (error.code() != ENOENT) throw;
    throw EnvironmentError(concat(error.what(),
                                  "; the dataset's root must be the folder that holds it (cifar-",
                                  options.classes,
                                  "-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html, "
                                  "unpacked)"));
  }
}

}  // namespace

TensorDataset read_cifar_dataset(const CifarOptions& options) {
  if (options.classes != 10 && options.classes != 100)
    throw ValueError(concat("CIFAR: got ", options.classes, " classes, expected 10 or 100"));
  if (options.limit < 0) {
    throw ValueError(
        concat("CIFAR: got limit ", options.limit, ", expected 0 (all samples) or more"));
  }
  std::vector<uint8_t> images, labels;
  for (const std::string& name : file_names(options)) {
    const CifarFile file = read_part(options, name);
    images.insert(images.end(), file.images.begin(), file.images.end());
    labels.insert(labels.end(), file.labels.begin(), file.labels.end());
  }
  const auto all = static_cast<int64_t>(labels.size());
  const int64_t count = options.limit == 0 ? all : std::min(options.limit, all);
  const at::Tensor input = at::empty({count, 3, 32, 32}, at::kByte);
  std::copy_n(images.begin(), input.numel(), input.mutable_data_ptr<uint8_t>());
  const at::Tensor target = at::empty({count}, at::kLong);
  std::copy_n(labels.begin(), count, target.mutable_data_ptr<int64_t>());
  return TensorDataset({input, target});
}

}  // namespace bellows::data
