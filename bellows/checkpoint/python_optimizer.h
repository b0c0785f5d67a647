// The state of optimizers between Bellows, which keeps it by parameter name, and Python's
// torch.optim, which keeps it by the parameter's number in order of model.named_parameters().
#pragma once

#include "bellows/checkpoint/py_value.h"
#include "bellows/optim/optimizer.h"

namespace bellows::checkpoint {

/// The optimizer's state as Python's optimizer.state_dict() has it, for SGD and AdamW: Python's
/// load_state_dict takes it, in an optimizer made with fused=True, for parameters grouped in the
/// same way. Tensors are shared, not copied. Throws ValueError for other optimizers.
PyValue to_python_optimizer(const optim::Optimizer& optimizer);

/// Loads what Python's optimizer.state_dict() gave: of SGD into SGD, of AdamW into AdamW. Numbers
/// stand for the optimizer's parameters, group by group, in order, so these must be those that
/// Python's had: pass model.named_parameters() on both sides. Throws ValueError, before anything
/// has changed, where groups, options or state do not fit.
void load_python_optimizer(const PyValue& state, optim::Optimizer& optimizer);

}  // namespace bellows::checkpoint
