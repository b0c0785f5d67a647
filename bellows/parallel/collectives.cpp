#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/parallel/flat.h"
#include "bellows/parallel/state.h"

namespace bellows::parallel {
namespace {

using Tensors = std::vector<at::Tensor>;
using Done = Transport::Done;

void check_rank(const Group::State& group, int64_t rank, const char* what) {
  if (rank >= 0 && rank < group.size()) return;
  throw ValueError(concat(what, ": got rank ", rank, ", the group \"", group.name,
                          "\" has ranks 0 to ", group.size() - 1));
}

/// Whether the back-end takes only copies of it on the CPU.
bool on_host(const Group::State& group, const at::Tensor& tensor) {
  return !group.transport()->takes(tensor.device());
}

/// `list`: one a rank on `root`, none elsewhere. Each like `tensor`.
void check_list(const Group::State& group, const Tensors& list, const at::Tensor& tensor,
                const char* operation, std::optional<int64_t> root = {}) {
  check_dense(tensor, operation);
  const int64_t expected = !root || *root == group.rank ? group.size() : 0;
  if (static_cast<int64_t>(list.size()) != expected) {
    throw ValueError(concat(operation, ": got a list of ", list.size(), " tensors, expected ",
                            expected, " on rank ", group.rank, " of the group"));
  }
  for (const auto& one : list) {
    check_dense(one, operation);
    check_alike(one, tensor, operation);
  }
}

std::vector<Flat> flats_of(const Group::State& group, const Tensors& tensors, bool for_output) {
  std::vector<Flat> flats;
  for (const auto& tensor : tensors) {
    flats.push_back(Flat::of(tensor, for_output, on_host(group, tensor)));
  }
  return flats;
}

Tensors bytes_of(const std::vector<Flat>& flats) {
  Tensors bytes;
  for (const auto& flat : flats) bytes.push_back(flat.bytes());
  return bytes;
}

void give_back(const std::vector<Flat>& flats) {
  for (const auto& flat : flats) flat.give_back();
}

Call call_of(const char* operation, const std::string& rest) {
  return {.operation = operation, .fingerprint = concat(operation, " ", rest)};
}

Call call_of(const char* operation, const at::Tensor& tensor) {
  return call_of(operation, type_and_shape(tensor));
}

Call call_of(const char* operation, ReduceOp op, const at::Tensor& tensor) {
  return call_of(operation, concat(op_name(op), " ", type_and_shape(tensor)));
}

Call rooted(Call call, const char* word, int64_t root) {
  call.fingerprint += concat(" ", word, " rank ", root);
  return call;
}

/// Equal parts of a flat tensor, of its own memory.
Tensors parts_of(const at::Tensor& flat, int64_t count) {
  Tensors parts;
  const int64_t each = flat.numel() / count;
  for (int64_t i = 0; i < count; ++i) parts.push_back(flat.narrow(0, i * each, each));
  return parts;
}

void check_parts(const Group::State& group, const at::Tensor& whole, const at::Tensor& part,
                 const char* operation) {
  check_dense(whole, operation);
  check_dense(part, operation);
  if (whole.numel() == part.numel() * group.size() && whole.scalar_type() == part.scalar_type()) {
    return;
  }
  throw ValueError(concat(operation, ": got ", type_and_shape(whole), " and ", type_and_shape(part),
                          ", expected the former to have ", group.size(),
                          " times as many elements of the same type"));
}

/// What each rank has for this one, summed up in order of rank: any order of arrival gives the
/// same.
Work reduce_parts(Group::State& group, Call call, const at::Tensor& output, const at::Tensor& whole,
                  ReduceOp op) {
  const auto input = std::make_shared<Flat>(Flat::of(whole, false, on_host(group, whole)));
  const at::Tensor received = at::empty_like(input->memory);
  const std::vector<int64_t> splits(static_cast<size_t>(group.size()),
                                    input->bytes().numel() / group.size());
  const int64_t ranks = group.size();
  return group.begin(
      std::move(call), {output},
      [&](Transport& transport, Done done) {
        if (whole.numel() == 0) return done(nullptr);
        transport.all_to_all(received.view(at::kByte), input->bytes(), splits, splits,
                             std::move(done));
      },
      [=] {
        const Tensors parts = parts_of(received, ranks);
        const at::Tensor sum = parts.front();
        for (size_t i = 1; i < parts.size(); ++i) accumulate(sum, parts[i], op);
        if (op == ReduceOp::average) sum.div_(ranks);
        output.detach().copy_(sum.view(output.sizes()));
        (void)input;  // alive until now
      });
}

std::vector<int64_t> scaled(const std::vector<int64_t>& splits, int64_t by) {
  std::vector<int64_t> result;
  for (const int64_t split : splits) result.push_back(split * by);
  return result;
}

/// Rows of dimension 0 for each rank.
std::vector<int64_t> splits_of(const Group::State& group, const at::Tensor& tensor,
                               const std::vector<int64_t>& splits, const char* what) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    if (rows % group.size() != 0) {
      throw ValueError(concat("all_to_all_single: ", what, " has ", rows,
                              " rows, which cannot be split evenly among ", group.size(),
                              " ranks"));
    }
    return std::vector<int64_t>(static_cast<size_t>(group.size()), rows / group.size());
  }
  const int64_t total = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  if (static_cast<int64_t>(splits.size()) != group.size() || total != rows ||
      std::ranges::min(splits) < 0) {
    throw ValueError(concat("all_to_all_single: the splits of ", what, " are ", splits.size(),
                            " numbers with the sum ", total, ", expected ", group.size(),
                            " that are not negative with the sum ", rows));
  }
  return splits;
}

int64_t row_bytes(const at::Tensor& tensor) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  return rows == 0 ? 0 : tensor.numel() / rows * tensor.element_size();
}

}  // namespace

Work AsyncCollectives::broadcast(const at::Tensor& tensor, int64_t src) const {
  check_rank(*group_, src, "broadcast");
  check_dense(tensor, "broadcast");
  const auto flat =
      std::make_shared<Flat>(Flat::of(tensor, src != group_->rank, on_host(*group_, tensor)));
  return group_->begin(
      rooted(call_of("broadcast", tensor), "from", src), {tensor},
      [&](Transport& transport, Done done) {
        if (tensor.numel() == 0) return done(nullptr);
        transport.broadcast(flat->bytes(), src, std::move(done));
      },
      [flat] { flat->give_back(); });
}

Work AsyncCollectives::all_reduce(const at::Tensor& tensor, ReduceOp op) const {
  check_dense(tensor, "all_reduce");
  const auto data =
      std::make_shared<Reducible>(Reducible::of(tensor, op, on_host(*group_, tensor)));
  return group_->begin(
      call_of("all_reduce", op, tensor), {tensor},
      [&](Transport& transport, Done done) {
        if (tensor.numel() == 0) return done(nullptr);
        transport.all_reduce(data->memory, data->op, std::move(done));
      },
      [data, op, ranks = group_->size()] { data->give_back(op, ranks); });
}

Work AsyncCollectives::all_reduce_coalesced(const Tensors& tensors, ReduceOp op) const {
  if (tensors.empty()) throw ValueError("all_reduce_coalesced: got no tensors, expected some");
  Tensors flats;
  std::vector<std::string> shapes;
  for (const auto& tensor : tensors) {
    check_dense(tensor, "all_reduce_coalesced");
    if (tensor.scalar_type() != tensors.front().scalar_type()) {
      throw ValueError(concat("all_reduce_coalesced: got ", type_and_shape(tensors.front()),
                              " and ", type_and_shape(tensor), ", expected tensors of one type"));
    }
    flats.push_back(Flat::of(tensor).memory);
    shapes.push_back(type_and_shape(tensor));
  }
  const at::Tensor whole = at::cat(flats);
  const auto data = std::make_shared<Reducible>(Reducible::of(whole, op, on_host(*group_, whole)));
  return group_->begin(
      call_of("all_reduce_coalesced", concat(op_name(op), " ", join(shapes))), tensors,
      [&](Transport& transport, Done done) {
        if (whole.numel() == 0) return done(nullptr);
        transport.all_reduce(data->memory, data->op, std::move(done));
      },
      [data, op, whole, tensors, ranks = group_->size()] {
        data->give_back(op, ranks);
        int64_t at = 0;
        for (const auto& tensor : tensors) {
          tensor.detach().copy_(whole.narrow(0, at, tensor.numel()).view(tensor.sizes()));
          at += tensor.numel();
        }
      });
}

Work AsyncCollectives::reduce(const at::Tensor& tensor, int64_t dst, ReduceOp op) const {
  check_rank(*group_, dst, "reduce");
  check_dense(tensor, "reduce");
  const auto data =
      std::make_shared<Reducible>(Reducible::of(tensor, op, on_host(*group_, tensor)));
  return group_->begin(
      rooted(call_of("reduce", op, tensor), "to", dst), {tensor},
      [&](Transport& transport, Done done) {
        if (tensor.numel() == 0) return done(nullptr);
        transport.reduce(data->memory, dst, data->op, std::move(done));
      },
      [data, op, ranks = group_->size()] { data->give_back(op, ranks); });
}

Work AsyncCollectives::all_gather(const Tensors& outputs, const at::Tensor& input) const {
  check_list(*group_, outputs, input, "all_gather");
  const auto to = std::make_shared<std::vector<Flat>>(flats_of(*group_, outputs, true));
  const auto from = std::make_shared<Flat>(Flat::of(input, false, on_host(*group_, input)));
  return group_->begin(
      call_of("all_gather", input), outputs,
      [&](Transport& transport, Done done) {
        if (input.numel() == 0) return done(nullptr);
        transport.all_gather(bytes_of(*to), from->bytes(), std::move(done));
      },
      [to, from] { give_back(*to); });
}

Work AsyncCollectives::all_gather_into_tensor(const at::Tensor& output,
                                              const at::Tensor& input) const {
  check_parts(*group_, output, input, "all_gather_into_tensor");
  const auto to = std::make_shared<Flat>(Flat::of(output, true, on_host(*group_, output)));
  const auto from = std::make_shared<Flat>(Flat::of(input, false, on_host(*group_, input)));
  return group_->begin(
      call_of("all_gather_into_tensor", input), {output},
      [&](Transport& transport, Done done) {
        if (input.numel() == 0) return done(nullptr);
        transport.all_gather(parts_of(to->bytes(), group_->size()), from->bytes(), std::move(done));
      },
      [to, from] { to->give_back(); });
}

Work AsyncCollectives::gather(const at::Tensor& input, const Tensors& outputs, int64_t dst) const {
  check_rank(*group_, dst, "gather");
  check_list(*group_, outputs, input, "gather", dst);
  const auto to = std::make_shared<std::vector<Flat>>(flats_of(*group_, outputs, true));
  const auto from = std::make_shared<Flat>(Flat::of(input, false, on_host(*group_, input)));
  return group_->begin(
      rooted(call_of("gather", input), "to", dst), outputs,
      [&](Transport& transport, Done done) {
        if (input.numel() == 0) return done(nullptr);
        transport.gather(bytes_of(*to), from->bytes(), dst, std::move(done));
      },
      [to, from] { give_back(*to); });
}

Work AsyncCollectives::scatter(const at::Tensor& output, const Tensors& inputs, int64_t src) const {
  check_rank(*group_, src, "scatter");
  check_list(*group_, inputs, output, "scatter", src);
  const auto to = std::make_shared<Flat>(Flat::of(output, true, on_host(*group_, output)));
  const auto from = std::make_shared<std::vector<Flat>>(flats_of(*group_, inputs, false));
  return group_->begin(
      rooted(call_of("scatter", output), "from", src), {output},
      [&](Transport& transport, Done done) {
        if (output.numel() == 0) return done(nullptr);
        transport.scatter(to->bytes(), bytes_of(*from), src, std::move(done));
      },
      [to, from] { to->give_back(); });
}

Work AsyncCollectives::reduce_scatter(const at::Tensor& output, const Tensors& inputs,
                                      ReduceOp op) const {
  check_list(*group_, inputs, output, "reduce_scatter");
  check_reducible(output, op);
  Tensors flats;
  for (const auto& input : inputs) flats.push_back(Flat::of(input).memory);
  return reduce_parts(*group_, call_of("reduce_scatter", op, output), output, at::cat(flats), op);
}

Work AsyncCollectives::reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                                             ReduceOp op) const {
  check_parts(*group_, input, output, "reduce_scatter_tensor");
  check_reducible(output, op);
  return reduce_parts(*group_, call_of("reduce_scatter_tensor", op, output), output, input, op);
}

Work AsyncCollectives::all_to_all(const Tensors& outputs, const Tensors& inputs) const {
  for (const Tensors* list : {&outputs, &inputs}) {
    if (static_cast<int64_t>(list->size()) != group_->size()) {
      throw ValueError(concat("all_to_all: got a list of ", list->size(), " tensors, expected ",
                              group_->size()));
    }
    for (const auto& tensor : *list) check_dense(tensor, "all_to_all");
  }
  Tensors sent;
  std::vector<int64_t> to_splits, from_splits;
  for (const auto& input : inputs) {
    sent.push_back(Flat::of(input, false, on_host(*group_, input)).bytes());
    from_splits.push_back(sent.back().numel());
  }
  for (const auto& output : outputs) to_splits.push_back(output.numel() * output.element_size());
  const at::Tensor from = at::cat(sent);
  const at::Tensor to =
      at::empty({std::accumulate(to_splits.begin(), to_splits.end(), int64_t{0})}, from.options());
  return group_->begin(
      call_of("all_to_all", ""), outputs,
      [&](Transport& transport, Done done) {
        transport.all_to_all(to, from, to_splits, from_splits, std::move(done));
      },
      [=] {
        int64_t at = 0;
        for (size_t i = 0; i < outputs.size(); ++i) {
          Flat flat = Flat::of(outputs[i], true);
          flat.bytes().copy_(to.narrow(0, at, to_splits[i]));
          flat.give_back();
          at += to_splits[i];
        }
        (void)from;  // alive until now
      });
}

Work AsyncCollectives::all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                                         const std::vector<int64_t>& output_splits,
                                         const std::vector<int64_t>& input_splits) const {
  check_dense(output, "all_to_all_single");
  check_dense(input, "all_to_all_single");
  const auto to_rows = splits_of(*group_, output, output_splits, "the output");
  const auto from_rows = splits_of(*group_, input, input_splits, "the input");
  if (output.scalar_type() != input.scalar_type()) {
    throw ValueError(concat("all_to_all_single: got ", type_and_shape(output), " and ",
                            type_and_shape(input), ", expected one type"));
  }
  const auto to = std::make_shared<Flat>(Flat::of(output, true, on_host(*group_, output)));
  const auto from = std::make_shared<Flat>(Flat::of(input, false, on_host(*group_, input)));
  const int64_t bytes = std::max(row_bytes(output), row_bytes(input));
  return group_->begin(
      call_of("all_to_all_single", ""), {output},
      [&](Transport& transport, Done done) {
        transport.all_to_all(to->bytes(), from->bytes(), scaled(to_rows, bytes),
                             scaled(from_rows, bytes), std::move(done));
      },
      [to, from] { to->give_back(); });
}

Work AsyncCollectives::send(const at::Tensor& tensor, int64_t dst, int64_t tag) const {
  check_rank(*group_, dst, "send");
  check_dense(tensor, "send");
  if (dst == group_->rank) throw ValueError("send: got this rank itself, expected another one");
  Call call = rooted(call_of("send", tensor), "to", dst);
  call.peer = group_->members[static_cast<size_t>(dst)];
  const auto flat = std::make_shared<Flat>(Flat::of(tensor, false, on_host(*group_, tensor)));
  return group_->begin_message(
      std::move(call), {tensor},
      [&](Transport& transport) {
        return transport.send(flat->bytes(), dst, static_cast<int>(tag));
      },
      [flat] {});
}

Work AsyncCollectives::barrier() const {
  return group_->begin(call_of("barrier", ""), {}, [&](Transport& transport, Done done) {
    transport.barrier(std::move(done));
  });
}

}  // namespace bellows::parallel
