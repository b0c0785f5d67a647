#include <algorithm>
#include <array>
#include <cctype>
#include <system_error>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/image.h"

namespace bellows::data {
namespace {

namespace fs = std::filesystem;

bool is_image_name(const std::string& name) {
  constexpr std::array<std::string_view, 3> kEndings = {".jpg", ".jpeg", ".png"};
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return lower.ends_with(ending); });
}

// Names of the folders, or of the image files, right below a folder, sorted by their bytes.
std::vector<std::string> names_below(const fs::path& folder, bool folders) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    std::error_code ignored;  // a link that leads nowhere is neither
    if (folders ? entries->is_directory(ignored)
                : is_image_name(name) && !entries->is_directory(ignored)) {
      names.push_back(name);
    }
  }
  if (error) throw FileError(folder, "list", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

// `above` are the real paths of the folders that lead here: a link back to one of them would make
// the same files come again and again.
void list_folders(const std::string& path, std::vector<fs::path>& above,
                  std::vector<std::string>& all) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) throw FileError(path, "resolve", error.value());
  if (std::find(above.begin(), above.end(), real) != above.end())
    throw EnvironmentError(concat(path, ": is a link back to ", real.string(), ": remove it"));
  all.push_back(path);
  above.push_back(real);
  for (const std::string& name : names_below(path, /*folders=*/true))
    list_folders(path + "/" + name, above, all);
  above.pop_back();
}

}  // namespace

ImageFolder::ImageFolder(const fs::path& root, ImageOptions options) : options_(options) {
  classes_ = names_below(root, /*folders=*/true);
  if (classes_.empty()) {
    throw EnvironmentError(
        concat(root.string(), ": got no folders, expected one for each class, with images in it"));
  }
  for (size_t label = 0; label < classes_.size(); ++label)
    add_class(root / classes_[label], static_cast<int64_t>(label));
  names_.shrink_to_fit();
  ends_.shrink_to_fit();
}

ImageFolder::~ImageFolder() = default;

void ImageFolder::add_class(const fs::path& path, int64_t label) {
  const int64_t before = size();
  std::vector<std::string> folders;
  std::vector<fs::path> above;
  list_folders(path.string(), above, folders);
  std::sort(folders.begin(), folders.end());
  for (const std::string& folder : folders) add_folder(folder, label);
  if (size() == before) {
    throw EnvironmentError(concat(path.string(),
                                  ": got no image in this class, expected .jpg, .jpeg or .png "
                                  "files; remove the folder, or fill it"));
  }
}

void ImageFolder::add_folder(const std::string& path, int64_t label) {
  for (const std::string& name : names_below(path, /*folders=*/false)) {
    names_ += name;
    ends_.push_back(names_.size());
  }
  if (!folders_.empty() && folders_.back().end == size()) return;  // no file in it
  if (size() > 0) folders_.push_back({path, size(), label});
}

int64_t ImageFolder::size() const {
  return std::ssize(ends_);
}

const ImageFolder::Folder& ImageFolder::folder_of(int64_t index) const {
  check_indices({&index, 1}, size());
  return *std::upper_bound(folders_.begin(), folders_.end(), index,
                           [](int64_t i, const Folder& folder) { return i < folder.end; });
}

int64_t ImageFolder::class_of(int64_t index) const {
  return folder_of(index).label;
}

std::string ImageFolder::source(int64_t index) const {
  if (index < 0 || index >= size()) return {};
  const auto at = static_cast<size_t>(index);
  const size_t begin = at == 0 ? 0 : ends_[at - 1];
  return folder_of(index).path + "/" + names_.substr(begin, ends_[at] - begin);
}

Tree ImageFolder::get(int64_t index) const {
  const int64_t label = class_of(index);
  return Tree::List{read_image(source(index), options_), label};
}

size_t ImageFolder::index_bytes() const {
  size_t bytes = names_.capacity() + ends_.capacity() * sizeof(uint64_t);
  for (const Folder& folder : folders_) bytes += sizeof(Folder) + folder.path.capacity();
  return bytes;
}

}  // namespace bellows::data
