// Finds where a NaN or infinite gradient comes from. The role of torch.autograd.detect_anomaly,
// which knows neither modules nor infinities.
#pragma once

#include <memory>

#include "bellows/device/interceptor.h"
#include "bellows/tree/tree.h"

namespace bellows::amp {

struct AnomalyState;

struct AnomalyOptions {
  /// false: NaN alone, as Python.
  bool check_inf = true;
};

/// While alive, a backward whose forward pass ran under it too throws NonFiniteError at the first
/// gradient that is NaN or infinite, in whichever thread autograd runs it: "the backward of
/// aten::sqrt after module 'encoder.1' (SqrtBackward0) made an infinite gradient …". It names the
/// forward operator as it was called (what it consists of counts to it), the module, which is the
/// path of the parameters among its arguments or else that of the operator before it, and the first
/// operator of the forward pass whose result was NaN or infinite, if any. Python's own functions
/// and C++'s custom ones are seen as the operators they call. For the search alone, since each
/// operator's result and gradient is read by the host: training takes several times as long.
/// Guards end on the thread that made them; forward passes in other threads need their own.
class AnomalyMode {
 public:
  /// `parameters` gives modules their names: pass the model's named_parameters().
  explicit AnomalyMode(const NamedTensors& parameters = {}, AnomalyOptions options = {});
  ~AnomalyMode();
  AnomalyMode(const AnomalyMode&) = delete;
  AnomalyMode& operator=(const AnomalyMode&) = delete;

 private:
  std::shared_ptr<AnomalyState> state_;
  InterceptGuard guard_;
};

}  // namespace bellows::amp
