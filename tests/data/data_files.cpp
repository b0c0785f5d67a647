// For tests/python/data_files.py: reads lines "KIND PATH"; writes what the file holds to PATH.out
// as raw bytes, and its type and sizes as one line. A folder's files and classes are written as
// lines.
#include <fstream>
#include <iostream>
#include <string>

#include "bellows/data/image.h"
#include "bellows/data/npy.h"

using namespace bellows::data;

int main() {
  std::string kind, path;
  while (std::cin >> kind && std::getline(std::cin >> std::ws, path)) {
    if (kind == "folder") {
      const ImageFolder folder(path);
      std::cout << folder.size() << '\n';
      for (int64_t i = 0; i < folder.size(); ++i)
        std::cout << folder.class_of(i) << ' ' << folder.source(i) << '\n';
      continue;
    }
    const at::Tensor tensor = (kind == "npy"    ? read_npy(path)
                               : kind == "grey" ? read_image(path, {.channels = 1})
                                                : read_image(path))
                                  .contiguous();
    std::ofstream(path + ".out", std::ios::binary)
        .write(static_cast<const char*>(tensor.const_data_ptr()),
               static_cast<std::streamsize>(tensor.nbytes()));
    std::cout << tensor.scalar_type();
    for (const int64_t size : tensor.sizes()) std::cout << ' ' << size;
    std::cout << '\n';
  }
}
