// For tests/python/image_transforms.py: reads lines "NAME FILE.npy ARGUMENTS…", writes the image
// that the transform makes of the file's to FILE.npy.out as raw bytes, and its type and sizes as
// one line.
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "bellows/data/npy.h"
#include "bellows/data/transforms.h"

using namespace bellows::data;

namespace {

at::Tensor transformed(const std::string& name, const at::Tensor& image, std::istream& in) {
  std::vector<double> a;
  for (double value = 0; in >> value;) a.push_back(value);
  const auto whole = [&](size_t i) { return static_cast<int64_t>(a.at(i)); };
  if (name == "to_float") return to_float(image);
  if (name == "normalize") {
    return normalize_channels(image, std::span(a).first(3), std::span(a).subspan(3));
  }
  if (name == "resize") return resize(image, whole(0), whole(1));
  if (name == "resize_shorter") return resize_shorter(image, whole(0));
  if (name == "crop") return crop(image, whole(0), whole(1), whole(2), whole(3));
  if (name == "center_crop") return center_crop(image, whole(0), whole(1));
  if (name == "flip") return flip_horizontal(image);
  if (name == "erase") return erase(image, whole(0), whole(1), whole(2), whole(3), a.at(4));
  if (name == "brightness") return adjust_brightness(image, a.at(0));
  if (name == "contrast") return adjust_contrast(image, a.at(0));
  if (name == "saturation") return adjust_saturation(image, a.at(0));
  if (name == "hue") return adjust_hue(image, a.at(0));
  throw std::invalid_argument(name);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string name, path;
    in >> name >> path;
    const at::Tensor result = transformed(name, read_npy(path), in).contiguous();
    std::ofstream(path + ".out", std::ios::binary)
        .write(static_cast<const char*>(result.const_data_ptr()),
               static_cast<std::streamsize>(result.nbytes()));
    std::cout << result.scalar_type();
    for (const int64_t size : result.sizes()) std::cout << ' ' << size;
    std::cout << std::endl;
  }
}
