#include "cli/contact_sheet.h"

#include <optional>

#include <ATen/ops/full.h>

#include "bellows/data/image.h"
#include "bellows/data/summary.h"
#include "bellows/data/transforms.h"

namespace bellows::cli {
namespace {

constexpr size_t kMostRows = 32, kMostColumns = 12;
constexpr int64_t kSide = 64, kGap = 2;
constexpr int kPaper = 255;

std::optional<at::Tensor> image_of(const Tree& sample) {
  std::optional<at::Tensor> found;
  sample.for_each_tensor([&](const std::string&, const at::Tensor& tensor) {
    if (found) return;
    at::Tensor image = tensor.dim() == 2 ? tensor.unsqueeze(0) : tensor;  // [H, W] of one IDX file
    const bool numbers = image.scalar_type() == at::kByte || image.is_floating_point();
    if (image.dim() != 3 || !numbers || image.numel() == 0) return;
    if (image.size(0) == 1 || image.size(0) == 3) found = image;
  });
  return found;
}

at::Tensor tile(const at::Tensor& image) {
  at::Tensor bytes = image;
  if (image.is_floating_point()) bytes = image.mul(255).clamp(0, 255).to(at::kByte);
  const at::Tensor square = data::center_crop(data::resize_shorter(bytes, kSide), kSide, kSide);
  return square.expand({3, kSide, kSide}).contiguous();
}

}  // namespace

void ContactSheet::add(const Tree& sample) {
  int64_t row = data::class_of(sample);
  if (row < 0) {
    for (row = 0; rows_.contains(row) && rows_.at(row).size() == kMostColumns;) ++row;
  }
  const auto found = rows_.find(row);
  if (found == rows_.end() && rows_.size() == kMostRows) return;
  if (found != rows_.end() && found->second.size() == kMostColumns) return;
  if (const auto image = image_of(sample)) rows_[row].push_back(tile(*image));
}

std::string ContactSheet::png() const {
  size_t columns = 0;
  for (const auto& [_, tiles] : rows_) columns = std::max(columns, tiles.size());
  const at::Tensor sheet = at::full({3, std::ssize(rows_) * (kSide + kGap) + kGap,
                                     static_cast<int64_t>(columns) * (kSide + kGap) + kGap},
                                    kPaper, at::kByte);
  int64_t top = kGap;
  for (const auto& [_, tiles] : rows_) {
    int64_t left = kGap;
    for (const at::Tensor& image : tiles) {
      sheet.narrow(1, top, kSide).narrow(2, left, kSide).copy_(image);
      left += kSide + kGap;
    }
    top += kSide + kGap;
  }
  return data::encode_png(sheet);
}

}  // namespace bellows::cli
