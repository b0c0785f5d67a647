// What lies at a path: which data sets, by the names of their files.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/data/dataset.h"
#include "bellows/data/stream.h"

namespace bellows::cli {

struct OpenedData {
  std::shared_ptr<const data::Dataset> dataset;  // one of these two
  std::shared_ptr<const data::StreamDataset> stream;
  std::vector<std::string> classes;  // their names, where they have some
};

/// "train", "test", …; its files are opened one after the other, so that damage to one does not
/// hide the others.
struct DataPart {
  std::string name;
  std::vector<std::function<OpenedData()>> files;
};

struct DataSource {
  std::string kind;
  std::vector<DataPart> parts;
};

/// Opens nothing. Throws ValueError for a path where nothing is, and for what is not known.
DataSource find_data(const std::filesystem::path& path, const std::string& csv_target);

}  // namespace bellows::cli
