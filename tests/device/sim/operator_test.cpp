// Operators: views are views, devices do not mix, and what is not supported is refused by name.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "bellows/device/device_check.h"
#include "bellows/device/move.h"
#include "bellows/device/seed.h"
#include "bellows/device/stream.h"
#include "tests/device/sim/fixture.h"

namespace bellows {
namespace {

class SimOperator : public SimTest {
 protected:
  static void expect_same(const at::Tensor& cpu, const at::Tensor& sim) {
    EXPECT_TRUE(at::equal(cpu, sim.cpu()));
    EXPECT_EQ(cpu.strides(), sim.strides());
    EXPECT_EQ(cpu.scalar_type(), sim.scalar_type());
  }
  const at::Tensor x_ = at::randn({3, 4});
};

TEST_F(SimOperator, ChangesThroughViewsReachTheBase) {
  const auto change = [](at::Tensor a) {
    a.t().mul_(2);
    a.select(0, 1).neg_();
    a.view({2, 6}).slice(1, 0, 6, 2).add_(1);
    a.diagonal().fill_(9);
    a.unfold(1, 2, 2).select(2, 0).sub_(3);
    at::view_as_complex(a.view({3, 2, 2})).mul_(2);
    a.expand({2, 3, 4}).select(0, 0).add_(5);
    return a;
  };
  expect_same(change(x_.clone()), change(x_.to(sim0_)));
}

TEST_F(SimOperator, AViewOfAViewIsOfTheSameStorage) {
  const at::Tensor x = x_.to(sim0_);
  for (const at::Tensor& view : {x.t(), x.view({12}), x.select(0, 1), x.unsqueeze(0), x.detach(),
                                 x.unfold(1, 2, 1), x.view({3, 2, 2}).permute({2, 0, 1}),
                                 x.squeeze(), at::view_as_complex(x.view({3, 2, 2}))}) {
    EXPECT_TRUE(view.storage().is_alias_of(x.storage()));
  }
  for (const at::Tensor& part : x.split(2)) EXPECT_TRUE(part.storage().is_alias_of(x.storage()));
  EXPECT_FALSE(x.clone().storage().is_alias_of(x.storage()));
}

TEST_F(SimOperator, MemoryFormatsSurviveTheWayToTheDeviceAndBack) {
  const at::Tensor image = at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor moved = image.to(sim0_);
  expect_same(image, moved);
  expect_same(image.relu(), moved.relu());
  EXPECT_EQ(moved.cpu().strides(), image.strides());
}

TEST_F(SimOperator, OutAndResizeKeepWhatTheCpuKeeps) {
  const auto run = [&](c10::Device device) {
    at::Tensor out = at::empty({0}, device);
    at::add_out(out, x_.to(device), x_.to(device));
    at::Tensor strided = at::empty({4, 3}, device).t();
    at::mul_out(strided, x_.to(device), x_.to(device));
    out.resize_({20}).slice(0, 12, 20).fill_(1);
    out.resize_({2, 5});
    at::Tensor other = at::empty({0}, device);
    other.set_(out);
    other.add_(1);
    return std::vector<at::Tensor>{out, strided, other};
  };
  const auto cpu = run(at::kCPU), sim = run(sim0_);
  for (size_t i = 0; i < cpu.size(); ++i) expect_same(cpu[i], sim[i]);
  EXPECT_TRUE(sim[2].storage().is_alias_of(sim[0].storage()));
}

TEST_F(SimOperator, MixedDevicesAreRefusedAndBothAreNamed) {
  const at::Tensor a = x_.to(sim0_), b = x_.to(sim1_);
  EXPECT_SAYS(a + b, "aten::add", "sim:0", "sim:1");
  EXPECT_SAYS(a + x_, "aten::add", "self on sim:0", "other on cpu");
  EXPECT_SAYS(at::mm(a, x_.t()), "sim:0", "cpu");
  EXPECT_SAYS(at::cat({a, x_}), "tensors[0] on sim:0", "tensors[1] on cpu");
  EXPECT_SAYS(at::embedding(a, at::arange(2)), "sim:0", "cpu");
  EXPECT_SAYS(a.add_(b), "sim:0", "sim:1");
  EXPECT_SAYS(x_.clone().add_(a), "sim:0", "cpu");
  at::Tensor out = at::empty({3, 4});
  EXPECT_SAYS(at::add_out(out, a, a), "sim:0", "cpu");
  EXPECT_SAYS(at::where(a > 0, a, x_), "sim:0", "cpu");
  EXPECT_SAYS(at::layer_norm(a, {4}, at::ones({4})), "sim:0", "cpu");
  EXPECT_SAYS(at::cross_entropy_loss(a, at::arange(3)), "sim:0", "cpu");
  EXPECT_SAYS(at::conv2d(at::ones({1, 1, 4, 4}, sim0_), at::ones({1, 1, 3, 3})), "sim:0", "cpu");
  EXPECT_SAYS(at::_foreach_add({a, a}, {a, b}), "sim:0", "sim:1");
}

TEST_F(SimOperator, NumbersAndIndicesMayBeOnTheCpuAsOnCuda) {
  const at::Tensor a = x_.to(sim0_);
  expect_same(x_ * at::scalar_tensor(2.5), a * at::scalar_tensor(2.5));
  expect_same(x_.masked_fill(x_ > 0, at::scalar_tensor(0.5)),
              a.masked_fill(a > 0, at::scalar_tensor(0.5)));
  expect_same(x_.index({at::tensor({2, 0})}), a.index({at::tensor({2, 0})}));
}

TEST_F(SimOperator, CopiesCrossDevicesWithTypesAndStrides) {
  const at::Tensor a = x_.to(sim0_);
  const at::Tensor b = at::zeros({4, 3}, at::device(sim1_).dtype(at::kDouble)).t();
  b.copy_(a);
  expect_same(at::zeros({4, 3}, at::kDouble).t().copy_(x_), b);
  EXPECT_EQ(a.to(at::kHalf).device(), sim0_);
  expect_same(x_.to(at::kHalf), a.to(at::kHalf));
  const at::Tensor row = at::zeros({3, 4}, sim0_).copy_(x_.select(0, 0));  // broadcast
  expect_same(x_.select(0, 0).expand({3, 4}).contiguous(), row);
}

TEST_F(SimOperator, OtherLayoutsAreRefusedByName) {
  const at::Tensor a = x_.to(sim0_);
  EXPECT_SAYS(a.to_sparse(), "aten::_to_sparse", "CPU");
  EXPECT_SAYS(at::quantize_per_tensor(a, 0.1, 0, at::kQInt8), "aten::quantize_per_tensor");
}

TEST_F(SimOperator, BackwardCrossesDevices) {
  const auto run = [&](c10::Device first, c10::Device second) {
    at::Tensor w = at::ones({4, 4}, first).requires_grad_();
    at::Tensor v = at::full({4, 2}, 0.5, second).requires_grad_();
    const at::Tensor h = at::mm(x_.to(first), w).to(second);
    at::mm(h.relu(), v).sum().backward();
    EXPECT_EQ(w.grad().device(), first);
    EXPECT_EQ(v.grad().device(), second);
    return std::make_pair(w.grad().cpu(), v.grad().cpu());
  };
  const auto cpu = run(at::kCPU, at::kCPU), sim = run(sim0_, sim1_);
  EXPECT_TRUE(at::equal(cpu.first, sim.first));
  EXPECT_TRUE(at::equal(cpu.second, sim.second));
}

TEST_F(SimOperator, BackwardRunsOnTheStreamOfItsForward) {
  at::Tensor w = at::ones({4}, sim0_).requires_grad_();
  const at::Tensor host = at::full({4}, 3.0).pin_memory();
  const Stream side = Stream::from_pool(sim0_);
  at::Tensor loss;
  {
    const StreamGuard on(side);
    const at::Tensor x = at::zeros({4}, sim0_);
    x.copy_(host, /*non_blocking=*/true);
    loss = (w * x).sum();
  }
  loss.backward();
  EXPECT_EQ(w.grad().sum().item<float>(), 12);
}

TEST_F(SimOperator, ErrorsInBackwardReachTheCaller) {
  at::Tensor w = at::ones({4}, sim0_).requires_grad_();
  const at::Tensor y = w.exp();
  y.add_(1);
  EXPECT_SAYS(y.sum().backward(), "modified by an inplace operation");
}

TEST_F(SimOperator, DeterministicModeFillsNewMemory) {
  set_deterministic(true);
  EXPECT_TRUE(at::empty({3}, sim0_).isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(at::empty({3}, at::kLong),
                        at::empty({3}, at::device(sim0_).dtype(at::kLong)).cpu()));
  EXPECT_TRUE(
      at::equal(at::empty({3}, at::kInt), at::empty({3}, at::device(sim0_).dtype(at::kInt)).cpu()));
  set_deterministic(false);
}

TEST_F(SimOperator, OurChecksNameSimulatedDevices) {
  const at::Tensor a = x_.to(sim1_);
  EXPECT_SAYS(check_devices(sim0_, {{"fc.weight", a}}, {}), "expected all on sim:0",
              "on sim:1: parameter fc.weight");
  EXPECT_EQ(to(Tree(x_), sim1_).tensor().device(), sim1_);
  const DeviceCheckGuard guard(sim0_, {{"fc.weight", a}});
  EXPECT_SAYS(at::mm(x_.t(), a), "sim:1", "fc.weight");
}

}  // namespace
}  // namespace bellows
