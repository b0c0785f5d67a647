#include "bellows/amp/scaled_optimizer.h"

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "bellows/core/text.h"

namespace bellows::amp {

ScaledOptimizer scaled(optim::Optimizer& optimizer) {
  ScaledOptimizer out{.identity = &optimizer,
                      .name =
                          [&optimizer](size_t index) {
                            size_t group = 0;
                            while (index >= optimizer.parameters(group).size())
                              index -= optimizer.parameters(group++).size();
                            return "'" + optimizer.parameters(group)[index].first + "'";
                          },
                      .step = [&optimizer] { optimizer.step(); },
                      .needs_closure = optimizer.name().ends_with("LBFGS")};
  for (size_t group = 0; group < optimizer.group_count(); ++group) {
    for (const auto& [name, parameter] : optimizer.parameters(group))
      out.parameters.push_back(parameter);
  }
  return out;
}

ScaledOptimizer scaled(torch::optim::Optimizer& optimizer) {
  ScaledOptimizer out{.identity = &optimizer,
                      .name =
                          [&optimizer](size_t index) {
                            size_t group = 0;
                            while (index >= optimizer.param_groups()[group].params().size())
                              index -= optimizer.param_groups()[group++].params().size();
                            return concat(index, " of group ", group, " (shape ",
                                          optimizer.param_groups()[group].params()[index].sizes(),
                                          ")");
                          },
                      .step = [&optimizer] { optimizer.step(); },
                      .needs_closure = dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr};
  for (const auto& group : optimizer.param_groups()) {
    out.parameters.insert(out.parameters.end(), group.params().begin(), group.params().end());
  }
  return out;
}

}  // namespace bellows::amp
