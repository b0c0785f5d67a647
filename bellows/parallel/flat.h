// Tensors as transports take them. Internal.
#pragma once

#include <string>
#include <vector>

#include "bellows/parallel/group.h"

namespace bellows::parallel {

/// A tensor's elements in their logical order, contiguous, of one dimension: its own memory where
/// that is so already, else a copy; with `on_host`, of a device's tensor, a copy on the CPU.
struct Flat {
  at::Tensor tensor;  // the user's
  at::Tensor memory;
  bool copied = false;

  /// `for_output`: what is in it does not matter.
  static Flat of(const at::Tensor& tensor, bool for_output = false, bool on_host = false);
  at::Tensor bytes() const;
  /// Into the user's tensor, where it is a copy.
  void give_back() const;
};

/// What is reduced: types that back-ends lack are replaced (bool, int16, complex). Throws
/// ValueError.
struct Reducible {
  Flat flat;
  at::Tensor memory;
  ReduceOp op;
  bool converted = false;

  static Reducible of(const at::Tensor& tensor, ReduceOp op, bool on_host = false);
  /// Also divides, for `average`.
  void give_back(ReduceOp wanted, int64_t ranks) const;
};

const char* op_name(ReduceOp op);
/// "float32 [2, 3]".
std::string type_and_shape(const at::Tensor& tensor);

/// Throws ValueError: `what` names the argument.
void check_dense(const at::Tensor& tensor, const std::string& what);
void check_reducible(const at::Tensor& tensor, ReduceOp op);
void check_alike(const at::Tensor& one, const at::Tensor& other, const std::string& what);

/// a = a op b, element by element.
void accumulate(const at::Tensor& a, const at::Tensor& b, ReduceOp op);

}  // namespace bellows::parallel
