// Ranks in a grid with named dimensions: the role of torch.distributed's DeviceMesh.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bellows/parallel/group.h"

namespace bellows::parallel {

struct MeshDimension {
  std::string name;
  int64_t size = 0;  // -1, in one dimension: what the others leave
};

/// The last dimension's ranks are neighbours: with {{"replica", 2}, {"shard", 2}} rank r stands at
/// replica r / 2, shard r % 2. A value; copies share their groups.
class Mesh {
 public:
  /// All ranks of `group` make it, with the same arguments: it makes the groups of every line.
  /// Throws ValueError for sizes whose product is not the group's size, for no dimension, and for
  /// names that are empty, come twice or contain '/', '+' or ':'.
  Mesh(Group group, std::vector<MeshDimension> dimensions);

  /// All ranks.
  const Group& world() const { return world_; }
  const std::vector<MeshDimension>& dimensions() const { return dimensions_; }
  /// The size of a dimension. Throws ValueError that lists the names and the nearest.
  int64_t size(const std::string& name) const;
  /// Where this rank stands in it; its rank in group(name).
  int64_t coordinate(const std::string& name) const;
  std::vector<int64_t> coordinates() const;
  /// The ranks that differ from this one in that dimension alone.
  const Group& group(const std::string& name) const;
  /// The ranks that differ in those dimensions alone, as one group, in the mesh's order; the first
  /// call for them is a collective of all ranks.
  Group flatten(const std::vector<std::string>& names);

 private:
  size_t index(const std::string& name) const;
  Group line(const std::vector<bool>& along, const std::string& name) const;

  Group world_;
  std::vector<MeshDimension> dimensions_;
  std::vector<int64_t> coordinates_;
  std::vector<Group> groups_;
  std::vector<std::pair<std::string, Group>> flattened_;
};

}  // namespace bellows::parallel
