#include "bellows/parallel/power_sgd.h"

#include <algorithm>
#include <map>
#include <random>
#include <sstream>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::parallel {
namespace {

constexpr int64_t kMostByGramSchmidt = 2;

void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const int64_t columns = matrices.size(2);
  for (int64_t i = 0; i < columns; ++i) {
    const at::Tensor column = matrices.narrow(2, i, 1);
    at::Tensor norm = at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, true);
    if (epsilon != 0) norm = norm + epsilon;
    column.div_(norm);
    if (i + 1 == columns) break;
    const at::Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_((column * rest).sum(at::IntArrayRef{1}, true) * column);
  }
}

// Columns of [batch, n, r] become orthonormal, in place.
void orthogonalize(const at::Tensor& matrices, double epsilon) {
  const auto type = matrices.scalar_type();
  if (matrices.size(2) <= kMostByGramSchmidt || type == at::kHalf || type == at::kBFloat16)
    gram_schmidt(matrices, epsilon);
  else
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
}

Work begin_sum(const Group& group, const at::Tensor& tensor) {
  return tensor.numel() == 0 ? Work() : group.async().all_reduce(tensor);
}

// A tensor of a bucket as a matrix, and its factors: matrix ~ p q^T.
struct Factors {
  at::Tensor matrix, p, q;  // [1, n, m], [1, n, r], [1, m, r]
};

// One bucket between the beginning and the end of its reduction.
struct Compressed {
  std::vector<Factors> factors;
  std::vector<at::Tensor> plain;  // tensors that are not compressed
  at::Tensor all_plain, all_p, all_q;
  at::Tensor before;  // the bucket with the error of the last step, before compression
};

}  // namespace

class PowerSgd::State {
 public:
  explicit State(PowerSgdOptions options)
      : options(options), random(static_cast<std::mt19937::result_type>(options.random_seed)) {}

  Reduction reduce(const Group& group, GradBucket& bucket) {
    if (iteration < options.start_power_sgd_iter) {
      if (bucket.is_last) ++iteration;
      return all_reduce_hook()(group, bucket);
    }
    const at::NoGradGuard no_grad;
    auto work = std::make_shared<Compressed>(begin(bucket));
    const Work plain = begin_sum(group, work->all_plain), p = begin_sum(group, work->all_p);
    return Reduction([this, group, bucket, work, plain, p] {
      const at::NoGradGuard no_grad;
      plain.wait();
      p.wait();
      return finish(group, bucket, *work);
    });
  }

  PowerSgdOptions options;
  std::mt19937 random;
  int64_t iteration = 0;
  std::map<int64_t, at::Tensor> errors, ps, qs;  // by bucket
  int64_t values_before = 0, values_after = 0;

 private:
  Compressed begin(const GradBucket& bucket) {
    Compressed out;
    if (options.use_error_feedback) {
      if (const auto error = errors.find(bucket.index); error != errors.end())
        bucket.tensor.add_(error->second);
      out.before = bucket.tensor.clone();
    }
    std::vector<at::Tensor> flat;
    int64_t p_size = 0, q_size = 0;
    for (const at::Tensor& gradient : bucket.gradients)
      if (const int64_t rank = worth(gradient)) {
        const at::Tensor matrix = gradient.view({1, gradient.size(0), -1});
        out.factors.push_back({matrix, {}, {}});
        p_size += matrix.size(1) * rank;
        q_size += matrix.size(2) * rank;
      } else {
        out.plain.push_back(gradient);
        flat.push_back(gradient.reshape({-1}));
      }
    out.all_plain = flat.empty() ? at::empty({0}, bucket.tensor.options()) : at::cat(flat);
    const bool fresh = !options.warm_start || !ps.contains(bucket.index);
    out.all_p = fresh ? at::empty({p_size}, bucket.tensor.options()) : ps.at(bucket.index);
    out.all_q = fresh ? at::empty({q_size}, bucket.tensor.options()) : qs.at(bucket.index);
    place(out);
    if (fresh) randomize(out);
    for (const Factors& f : out.factors) {
      orthogonalize(f.q, options.orthogonalization_epsilon);
      f.p.copy_(at::bmm(f.matrix, f.q));
    }
    return out;
  }

  at::Tensor finish(const Group& group, const GradBucket& bucket, Compressed& work) {
    const auto divisor = static_cast<double>(bucket.divisor);
    work.all_plain.div_(divisor);
    int64_t offset = 0;
    for (const at::Tensor& tensor : work.plain) {
      tensor.copy_(work.all_plain.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
    for (const Factors& f : work.factors) {
      orthogonalize(f.p, options.orthogonalization_epsilon);
      f.q.copy_(at::bmm(f.matrix.transpose(1, 2), f.p));
    }
    begin_sum(group, work.all_q).wait();
    work.all_q.div_(divisor);
    for (const Factors& f : work.factors) f.matrix.copy_(at::bmm(f.p, f.q.transpose(1, 2)));
    if (options.use_error_feedback) errors[bucket.index] = work.before - bucket.tensor;
    if (options.warm_start) {
      ps[bucket.index] = work.all_p;
      qs[bucket.index] = work.all_q;
    }
    if (bucket.is_last) ++iteration;
    return bucket.tensor;
  }

  // The rank of its factors, or 0 where compression saves too little.
  int64_t worth(const at::Tensor& gradient) {
    const int64_t whole = gradient.numel();
    values_before += whole;
    int64_t rank = 0;
    if (whole > 0 && gradient.dim() > 0 && gradient.is_contiguous()) {
      const int64_t n = gradient.size(0), m = whole / n;
      rank = std::min({n, m, options.matrix_approximation_rank});
      const int64_t small = (n + m) * rank;
      if (static_cast<double>(small) * options.min_compression_rate < static_cast<double>(whole)) {
        values_after += small;
        return rank;
      }
    }
    values_after += whole;
    return 0;
  }

  // Gives each matrix its part of the two flat tensors.
  void place(Compressed& work) const {
    int64_t p_at = 0, q_at = 0;
    for (Factors& f : work.factors) {
      const int64_t n = f.matrix.size(1), m = f.matrix.size(2);
      const int64_t rank = std::min({n, m, options.matrix_approximation_rank});
      f.p = work.all_p.narrow(0, p_at, n * rank).view({1, n, rank});
      f.q = work.all_q.narrow(0, q_at, m * rank).view({1, m, rank});
      p_at += n * rank;
      q_at += m * rank;
    }
  }

  // The same on all ranks: a seed from the sequence of numpy.random.RandomState(random_seed), and
  // LibTorch's generator.
  void randomize(const Compressed& work) {
    constexpr uint32_t kBelow = 1'000'000'000, kMask = (1U << 30) - 1;
    uint32_t seed;
    do seed = static_cast<uint32_t>(random()) & kMask;
    while (seed >= kBelow);
    at::Generator generator = at::detail::createCPUGenerator(seed);
    for (const Factors& f : work.factors)
      f.q.copy_(at::randn(f.q.sizes(), generator, f.q.options().device(at::kCPU)));
  }
};

PowerSgd::PowerSgd(PowerSgdOptions options) {
  const auto require = [](bool good, const char* name, auto got, const char* expected) {
    if (!good) throw ValueError(concat("PowerSgd: ", name, ": got ", got, ", expected ", expected));
  };
  require(options.matrix_approximation_rank >= 1, "matrix_approximation_rank",
          options.matrix_approximation_rank, "at least 1");
  require(options.min_compression_rate > 0, "min_compression_rate", options.min_compression_rate,
          "a number above 0");
  require(options.orthogonalization_epsilon >= 0, "orthogonalization_epsilon",
          options.orthogonalization_epsilon, "0 or more");
  require(options.start_power_sgd_iter > 1 || !(options.use_error_feedback || options.warm_start),
          "start_power_sgd_iter", options.start_power_sgd_iter,
          "above 1 with use_error_feedback or warm_start");
  state_ = std::make_shared<State>(options);
}
PowerSgd::~PowerSgd() = default;

CommHook PowerSgd::hook() const {
  return [state = state_](const Group& group, GradBucket& bucket) {
    return state->reduce(group, bucket);
  };
}

double PowerSgd::compression_rate() const {
  if (state_->values_after == 0) return 0;
  return static_cast<double>(state_->values_before) / static_cast<double>(state_->values_after);
}

namespace {

Tree by_bucket(const std::map<int64_t, at::Tensor>& tensors) {
  Tree::Dict out;
  for (const auto& [bucket, tensor] : tensors) out.emplace(std::to_string(bucket), tensor);
  return out;
}

std::map<int64_t, at::Tensor> from_tree(const Tree& tree) {
  std::map<int64_t, at::Tensor> out;
  for (const auto& [bucket, tensor] : tree.dict())
    out.emplace(std::stoll(bucket), tensor.tensor().clone());
  return out;
}

}  // namespace

Tree PowerSgd::state_dict() const {
  std::ostringstream random;
  random << state_->random;
  return Tree::Dict{{"iteration", state_->iteration},      {"random", random.str()},
                    {"errors", by_bucket(state_->errors)}, {"p", by_bucket(state_->ps)},
                    {"q", by_bucket(state_->qs)},          {"values_before", state_->values_before},
                    {"values_after", state_->values_after}};
}

void PowerSgd::load_state_dict(const Tree& state) {
  const int64_t iteration = state.at("iteration").integer();
  const int64_t before = state.at("values_before").integer();
  const int64_t after = state.at("values_after").integer();
  auto errors = from_tree(state.at("errors")), ps = from_tree(state.at("p")),
       qs = from_tree(state.at("q"));
  std::istringstream text(state.at("random").string());
  std::mt19937 random;
  text >> random;
  if (!text) throw ValueError("PowerSgd: `random` is not the state of its generator");
  state_->iteration = iteration;
  state_->values_before = before;
  state_->values_after = after;
  state_->errors = std::move(errors);
  state_->ps = std::move(ps);
  state_->qs = std::move(qs);
  state_->random = random;
}

}  // namespace bellows::parallel
