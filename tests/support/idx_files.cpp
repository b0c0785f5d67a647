#include "tests/support/idx_files.h"

#include <fstream>
#include <random>
#include <string>

namespace bellows::testing {
namespace {

constexpr int64_t kSide = 28;

void put32(std::ofstream& out, int64_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.put(static_cast<char>(value >> shift));
}

void write_pair(const std::filesystem::path& folder, const std::string& name, int64_t count,
                int64_t classes, std::mt19937& random) {
  std::ofstream images(folder / (name + "-images-idx3-ubyte"), std::ios::binary);
  std::ofstream labels(folder / (name + "-labels-idx1-ubyte"), std::ios::binary);
  put32(images, 0x0803);
  put32(images, count);
  put32(images, kSide);
  put32(images, kSide);
  put32(labels, 0x0801);
  put32(labels, count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t label = i % classes;
    labels.put(static_cast<char>(label));
    for (int64_t pixel = 0; pixel < kSide * kSide; ++pixel) {
      const bool bright = pixel / kSide * classes / kSide == label;
      images.put(static_cast<char>((bright ? 150 : 0) + random() % 100));
    }
  }
}

}  // namespace

void write_image_set(const std::filesystem::path& folder, int64_t training, int64_t test,
                     int64_t classes) {
  std::filesystem::create_directories(folder);
  std::mt19937 random(7);
  write_pair(folder, "train", training, classes, random);
  write_pair(folder, "t10k", test, classes, random);
}

}  // namespace bellows::testing
