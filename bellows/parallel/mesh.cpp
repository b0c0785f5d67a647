#include "bellows/parallel/mesh.h"

#include <algorithm>
#include <map>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::parallel {
namespace {

std::string words_of(const std::vector<MeshDimension>& dimensions) {
  std::vector<std::string> words;
  for (const auto& one : dimensions) words.push_back(concat(one.name, " = ", one.size));
  return join(words);
}

void check_names(const std::vector<MeshDimension>& dimensions) {
  if (dimensions.empty()) throw ValueError("a mesh needs at least one dimension");
  for (size_t i = 0; i < dimensions.size(); ++i) {
    const std::string& name = dimensions[i].name;
    if (name.empty() || name.find_first_of("/+:") != std::string::npos) {
      throw ValueError(concat("a mesh's dimension: got the name '", name,
                              "', expected one that is not empty and without '/', '+' and ':'"));
    }
    for (size_t before = 0; before < i; ++before) {
      if (dimensions[before].name == name) {
        throw ValueError("a mesh's dimension: the name '" + name + "' comes twice");
      }
    }
  }
}

void fill_sizes(std::vector<MeshDimension>& dimensions, int64_t ranks) {
  const std::string given = words_of(dimensions);
  const auto fail = [&](const std::string& what) {
    throw ValueError(concat("a mesh of ", given, ": ", what));
  };
  MeshDimension* open = nullptr;
  int64_t product = 1;
  for (auto& one : dimensions) {
    if (one.size == -1) {
      if (open != nullptr) fail("only one size may be -1");
      open = &one;
    } else if (one.size < 1) {
      fail(concat("expected sizes of at least 1, or -1 for what the others leave"));
    } else if (product > ranks) {
      break;  // large sizes must not overflow
    } else {
      product *= one.size;
    }
  }
  if (open != nullptr && ranks % product == 0) {
    open->size = ranks / product;
    product = ranks;
  }
  if (product != ranks) {
    fail(concat("the product of the sizes must ", open != nullptr ? "divide" : "be",
                " the number of ranks, ", ranks));
  }
}

}  // namespace

Mesh::Mesh(Group group, std::vector<MeshDimension> dimensions)
    : world_(std::move(group)), dimensions_(std::move(dimensions)) {
  check_names(dimensions_);
  fill_sizes(dimensions_, world_.size());
  int64_t rest = world_.rank();
  coordinates_.resize(dimensions_.size());
  for (size_t i = dimensions_.size(); i-- > 0;) {
    coordinates_[i] = rest % dimensions_[i].size;
    rest /= dimensions_[i].size;
  }
  for (size_t i = 0; i < dimensions_.size(); ++i) {
    std::vector<bool> along(dimensions_.size());
    along[i] = true;
    groups_.push_back(line(along, dimensions_[i].name));
  }
}

/// Makes the groups of all lines along those dimensions; this rank's.
Group Mesh::line(const std::vector<bool>& along, const std::string& name) const {
  std::map<int64_t, std::vector<int64_t>> lines;  // by the place of their first rank
  for (int64_t rank = 0; rank < world_.size(); ++rank) {
    int64_t first = rank, stride = 1, rest = rank;
    for (size_t i = dimensions_.size(); i-- > 0;) {
      if (along[i]) first -= rest % dimensions_[i].size * stride;
      rest /= dimensions_[i].size;
      stride *= dimensions_[i].size;
    }
    lines[first].push_back(rank);
  }
  std::optional<Group> own;
  for (const auto& [first, ranks] : lines) {
    auto made = world_.subgroup(ranks, concat(name, ":", first));
    if (made) own = std::move(made);
  }
  return *own;
}

size_t Mesh::index(const std::string& name) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < dimensions_.size(); ++i) {
    if (dimensions_[i].name == name) return i;
    names.push_back(dimensions_[i].name);
  }
  const std::string near = nearest(name, names);
  throw ValueError(concat("this mesh has no dimension '", name, "'; it has ", join(names),
                          near.empty() ? "" : ", did you mean '" + near + "'?"));
}

int64_t Mesh::size(const std::string& name) const {
  return dimensions_[index(name)].size;
}

int64_t Mesh::coordinate(const std::string& name) const {
  return coordinates_[index(name)];
}

std::vector<int64_t> Mesh::coordinates() const {
  return coordinates_;
}

const Group& Mesh::group(const std::string& name) const {
  return groups_[index(name)];
}

Group Mesh::flatten(const std::vector<std::string>& names) {
  std::vector<bool> along(dimensions_.size());
  for (const auto& name : names) along[index(name)] = true;
  std::vector<std::string> in_order;
  for (size_t i = 0; i < dimensions_.size(); ++i) {
    if (along[i]) in_order.push_back(dimensions_[i].name);
  }
  if (in_order.empty()) throw ValueError("flattening a mesh: got no dimensions, expected some");
  if (in_order.size() == 1) return group(in_order.front());
  const std::string joined = join(in_order, "+");
  for (const auto& [name, group] : flattened_) {
    if (name == joined) return group;
  }
  flattened_.emplace_back(joined, line(along, joined));
  return flattened_.back().second;
}

}  // namespace bellows::parallel
