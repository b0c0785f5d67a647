// Small image sets in IDX files, for tests that train.
#pragma once

#include <cstdint>
#include <filesystem>

namespace bellows::testing {

/// Writes train and t10k images (28 x 28) and labels into `folder`. Each class has a pattern of its
/// own plus noise, so that a model learns them in a few steps. The same arguments give the same
/// files.
void write_image_set(const std::filesystem::path& folder, int64_t training, int64_t test,
                     int64_t classes = 10);

}  // namespace bellows::testing
