// Whether all ranks are about to train the same model in the same way.
#pragma once

#include <string>
#include <vector>

#include "bellows/parallel/group.h"

namespace bellows::parallel {

/// One thing that must be the same on all ranks: what it is called and what it is, such as
/// {"parameter fc.weight", "float [3, 2]"}.
struct Fact {
  std::string name;
  std::string value;
};

Fact describe(const std::string& kind, const std::string& name, const at::Tensor& tensor);

/// Compares the lists before anything else is exchanged. Where any rank's differs from rank 0's, in
/// number, order, names or values, throws the same ValueError on all ranks; it names both ranks and
/// what each has at the first place that differs.
void require_agreement(const Group& group, const std::vector<Fact>& facts);

}  // namespace bellows::parallel
