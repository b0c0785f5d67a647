// Autocast gives every operator the type that it has on the CPU.
#include <set>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "tests/device/sim/fixture.h"

namespace bellows {
namespace {

class AutocastOn {
 public:
  AutocastOn(c10::DeviceType type, at::ScalarType to) : type_(type) {
    at::autocast::set_autocast_enabled(type, true);
    at::autocast::set_autocast_dtype(type, to);
    at::autocast::increment_nesting();
  }
  ~AutocastOn() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type_, false);
  }

 private:
  c10::DeviceType type_;
};

using Call = std::function<at::Tensor(const at::Tensor& f, const at::Tensor& h)>;

// f is a float32 [1, 4, 4], h the same in the lower precision.
const std::vector<std::pair<std::string, Call>> kCalls{
    {"mm", [](auto& f, auto&) { return at::mm(f[0], f[0]); }},
    {"bmm", [](auto& f, auto& h) { return at::bmm(f, h); }},
    {"addmm", [](auto& f, auto&) { return at::addmm(f[0], f[0], f[0]); }},
    {"baddbmm", [](auto& f, auto& h) { return at::baddbmm(f, f, h); }},
    {"matmul", [](auto& f, auto& h) { return at::matmul(f, h); }},
    {"linear", [](auto& f, auto&) { return at::linear(f, f[0], f[0][0]); }},
    {"conv1d", [](auto& f, auto&) { return at::conv1d(f, f); }},
    {"conv2d", [](auto& f, auto&) { return at::conv2d(f.unsqueeze(0), f.unsqueeze(0)); }},
    {"conv3d",
     [](auto& f, auto&) {
       return at::conv3d(f.view({1, 1, 1, 4, 4}), f.view({1, 1, 1, 4, 4}));
     }},
    {"conv_transpose2d",
     [](auto& f, auto&) { return at::conv_transpose2d(f.unsqueeze(0), f.unsqueeze(0)); }},
    {"prelu", [](auto& f, auto& h) { return at::prelu(h, f[0][0].slice(0, 0, 1)); }},
    {"attention",
     [](auto& f, auto&) {
       return at::scaled_dot_product_attention(f.unsqueeze(0), f.unsqueeze(0), f.unsqueeze(0));
     }},
    {"mse_loss", [](auto& f, auto& h) { return at::mse_loss(h, f); }},
    {"mse_loss of lower", [](auto&, auto& h) { return at::mse_loss(h, h); }},
    {"l1_loss", [](auto&, auto& h) { return at::l1_loss(h, h); }},
    {"smooth_l1_loss", [](auto&, auto& h) { return at::smooth_l1_loss(h, h); }},
    {"huber_loss", [](auto&, auto& h) { return at::huber_loss(h, h); }},
    {"cross_entropy",
     [](auto&, auto& h) {
       return at::cross_entropy_loss(h[0], at::zeros({4}, h.options().dtype(at::kLong)));
     }},
    {"nll_loss",
     [](auto&, auto& h) {
       return at::nll_loss(h[0], at::zeros({4}, h.options().dtype(at::kLong)));
     }},
    {"bce", [](auto&, auto& h) { return at::binary_cross_entropy(h.sigmoid(), h.sigmoid()); }},
    {"bce_with_logits", [](auto&, auto& h) { return at::binary_cross_entropy_with_logits(h, h); }},
    {"kl_div", [](auto&, auto& h) { return at::kl_div(h, h); }},
    {"prod", [](auto&, auto& h) { return at::prod(h, 1); }},
    {"cdist", [](auto&, auto& h) { return at::cdist(h, h); }},
    {"trace", [](auto&, auto& h) { return at::trace(h[0]); }},
    {"avg_pool3d",
     [](auto&, auto& h) {
       return at::avg_pool3d(h.view({1, 1, 1, 4, 4}), {1, 2, 2});
     }},
    {"reflection_pad1d",
     [](auto&, auto& h) {
       return at::reflection_pad1d(h, {1, 1});
     }},
    {"cat",
     [](auto& f, auto& h) {
       return at::cat({h, f});
     }},
    {"cat of lower",
     [](auto&, auto& h) {
       return at::cat({h, h});
     }},
    {"stack",
     [](auto& f, auto& h) {
       return at::stack({f, h});
     }},
    {"index_copy",
     [](auto& f, auto& h) {
       return at::index_copy(f[0], 0, at::arange(4, f.options().dtype(at::kLong)), h[0]);
     }},
    {"softmax", [](auto&, auto& h) { return at::softmax(h, 1); }},
    {"relu", [](auto&, auto& h) { return at::relu(h); }},
    {"gelu", [](auto&, auto& h) { return at::gelu(h); }},
    {"layer_norm", [](auto& f, auto&) { return at::layer_norm(f, {4}); }},
    {"add", [](auto& f, auto& h) { return f + h; }},
    {"exp", [](auto&, auto& h) { return at::exp(h); }},
    {"mm of double",
     [](auto& f, auto&) { return at::mm(f[0].to(at::kDouble), f[0].to(at::kDouble)); }},
};

class SimAutocast : public SimTest, public ::testing::WithParamInterface<at::ScalarType> {};

TEST_P(SimAutocast, EveryTypeIsTheCpus) {
  const at::Tensor f = at::rand({1, 4, 4}) + 0.1;
  for (const auto& [name, call] : kCalls) {
    const auto run = [&](c10::Device device) {
      const at::Tensor x = f.to(device), h = x.to(GetParam());
      const AutocastOn on(device.type(), GetParam());
      return call(x, h);
    };
    at::Tensor cpu;
    try {
      cpu = run(at::kCPU);
    } catch (const c10::Error&) {
      EXPECT_THROW(run(sim0_), c10::Error) << name;
      continue;
    }
    const at::Tensor sim = run(sim0_);
    EXPECT_EQ(cpu.scalar_type(), sim.scalar_type()) << name;
    EXPECT_TRUE(at::equal(cpu, sim.cpu())) << name;
  }
}
INSTANTIATE_TEST_SUITE_P(Types, SimAutocast, ::testing::Values(at::kBFloat16, at::kHalf));

TEST_F(SimTest, AutocastCastsTheCpusOperatorsAndNoOther) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto names = [&](c10::DispatchKey key) {
    std::set<std::string> out;
    for (const auto& name : dispatcher.getRegistrationsForDispatchKey(key))
      if (name.name.starts_with("aten::")) out.insert(c10::toString(name));
    return out;
  };
  const auto cpu = names(c10::DispatchKey::AutocastCPU);
  EXPECT_GT(cpu.size(), 80u);
  EXPECT_EQ(cpu, names(c10::DispatchKey::AutocastHPU));
}

TEST_F(SimTest, WeightsAreCastOnceWhileAutocastIsOn) {
  at::Tensor w = at::ones({4, 4}, sim0_).requires_grad_();
  const AutocastOn on(sim0_.type(), at::kBFloat16);
  const at::Tensor first = at::mm(w, w), second = at::mm(w, w);
  (first + second).sum().backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(w.grad().sum().item<float>(), 2 * 2 * 4 * 16);
}

}  // namespace
}  // namespace bellows
