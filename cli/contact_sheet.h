// Many small images on one picture.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bellows/tree/tree.h"

namespace bellows::cli {

/// A row for each of the first 32 classes with their first 12 images, each brought to 64 x 64;
/// samples without a class fill rows one after the other. Not thread-safe.
class ContactSheet {
 public:
  /// Takes the sample's first tensor that is an image: uint8 or float, 1 or 3 channels in front.
  void add(const Tree& sample);
  bool empty() const { return rows_.empty(); }
  /// A PNG file.
  std::string png() const;

 private:
  std::map<int64_t, std::vector<at::Tensor>> rows_;
};

}  // namespace bellows::cli
