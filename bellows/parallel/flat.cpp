#include "bellows/parallel/flat.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include "bellows/checkpoint/torch_scalar_types.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/device/device.h"

namespace bellows::parallel {
namespace {

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::bit_and || op == ReduceOp::bit_or || op == ReduceOp::bit_xor;
}

/// Of truth values; as PyTorch's NCCL back-end has it.
ReduceOp logical(ReduceOp op) {
  if (op == ReduceOp::sum || op == ReduceOp::max) return ReduceOp::bit_or;
  if (op == ReduceOp::product || op == ReduceOp::min) return ReduceOp::bit_and;
  return op;
}

}  // namespace

Flat Flat::of(const at::Tensor& tensor, bool for_output, bool on_host) {
  Flat flat{tensor, tensor.detach(), false};
  const bool elsewhere = on_host && !tensor.is_cpu();
  const bool plain = flat.memory.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  if (!plain || elsewhere) {
    flat.copied = true;
    auto options = tensor.options().requires_grad(false);
    if (elsewhere) options = options.device(c10::kCPU);
    flat.memory = for_output ? at::empty(tensor.sizes(), options)
                             : flat.memory.resolve_conj().resolve_neg().to(options).contiguous();
  }
  flat.memory = flat.memory.view({flat.memory.numel()});
  return flat;
}

at::Tensor Flat::bytes() const {
  return memory.view(at::kByte);
}

void Flat::give_back() const {
  if (copied) tensor.detach().copy_(memory.view(tensor.sizes()));
}

Reducible Reducible::of(const at::Tensor& tensor, ReduceOp op, bool on_host) {
  check_reducible(tensor, op);
  Reducible reducible{
      Flat::of(tensor, false, on_host), {}, op == ReduceOp::average ? ReduceOp::sum : op};
  reducible.memory = reducible.flat.memory;
  const auto type = tensor.scalar_type();
  if (type == at::kBool) {
    reducible.memory = reducible.memory.view(at::kByte);
    reducible.op = logical(op);
  } else if (type == at::kShort) {
    reducible.memory = reducible.memory.to(at::kInt);
    reducible.converted = true;
  } else if (c10::isComplexType(type)) {
    reducible.memory = reducible.memory.view(c10::toRealValueType(type));
  }
  return reducible;
}

void Reducible::give_back(ReduceOp wanted, int64_t ranks) const {
  if (wanted == ReduceOp::average) memory.div_(ranks);
  if (converted) flat.memory.copy_(memory);
  flat.give_back();
}

void check_reducible(const at::Tensor& tensor, ReduceOp op) {
  const auto type = tensor.scalar_type();
  const bool integral = c10::isIntegralType(type, true);
  const auto refuse = [&](const std::string& why) {
    throw ValueError(concat(op_name(op), " of ", checkpoint::torch_type_name(type), ": ", why));
  };
  if (op == ReduceOp::average && integral)
    refuse("only floating-point numbers have an average here");
  if (is_bitwise(op) && !integral) refuse("only integers have bits to combine");
  if (c10::isComplexType(type) && op != ReduceOp::sum && op != ReduceOp::average) {
    refuse("complex numbers have a sum and an average alone");
  }
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kBool:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return;
    default:
      refuse("this type cannot be reduced; convert the tensor first, or gather it");
  }
}

const char* op_name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "average", "product", "min",
                                    "max", "bit_and", "bit_or",  "bit_xor"};
  return kNames[static_cast<int>(op)];
}

std::string type_and_shape(const at::Tensor& tensor) {
  std::vector<std::string> sizes;
  for (const int64_t size : tensor.sizes()) sizes.push_back(std::to_string(size));
  return concat(checkpoint::torch_type_name(tensor.scalar_type()), " [", join(sizes), "]");
}

void check_dense(const at::Tensor& tensor, const std::string& what) {
  if (!tensor.defined()) throw ValueError(what + ": got an undefined tensor, expected a dense one");
  if (tensor.layout() != c10::kStrided || tensor.is_quantized()) {
    throw ValueError(what + ": got a sparse or quantized tensor, expected a dense one");
  }
}

void check_alike(const at::Tensor& one, const at::Tensor& other, const std::string& what) {
  if (one.scalar_type() == other.scalar_type() && one.numel() == other.numel() &&
      one.device() == other.device()) {
    return;
  }
  throw ValueError(concat(what, ": got ", type_and_shape(one), " on ", device_name(one.device()),
                          " and ", type_and_shape(other), " on ", device_name(other.device()),
                          ", expected the same type, number of elements and device"));
}

void accumulate(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  switch (op) {
    case ReduceOp::product:
      a.mul_(b);
      break;
    case ReduceOp::min:
      a.copy_(at::minimum(a, b));
      break;
    case ReduceOp::max:
      a.copy_(at::maximum(a, b));
      break;
    case ReduceOp::bit_and:
      a.bitwise_and_(b);
      break;
    case ReduceOp::bit_or:
      a.bitwise_or_(b);
      break;
    case ReduceOp::bit_xor:
      a.bitwise_xor_(b);
      break;
    default:
      a.add_(b);
  }
}

}  // namespace bellows::parallel
