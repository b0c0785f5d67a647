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

TEST_F(SimOperator, LayoutsThatAreMadeAnotherWayAreRefusedByNameToo) {
  EXPECT_SAYS(at::arange(4).view({2, 2}).to_sparse().to(sim0_), "strided", "CPU");
  at::Tensor w = at::ones({4, 2}, sim0_).requires_grad_();
  const at::Tensor picked = at::embedding(w, at::arange(2, at::device(sim0_).dtype(at::kLong)), -1,
                                          false, /*sparse=*/true);
  EXPECT_SAYS(picked.sum().backward(), "strided", "CPU");
}

TEST_F(SimOperator, ConjugatedNegatedAndZeroTensorsAreCopiedAndComputedWith) {
  const auto run = [](c10::Device device) {
    at::Tensor z = at::complex(at::arange(6, at::kFloat).view({2, 3}), at::ones({2, 3}))
                       .to(device)
                       .requires_grad_();
    at::Tensor out = at::mm(z.mH().contiguous(), z.conj().clone());
    at::view_as_real(out).sum().backward();
    const at::Tensor zero = at::_efficientzerotensor({3}, at::device(device).dtype(at::kFloat));
    return std::vector<at::Tensor>{out.detach(),
                                   z.grad(),
                                   z.detach().conj(),
                                   at::_neg_view(z.detach()).resolve_neg(),
                                   zero + at::ones({3}, device),
                                   at::real(z.detach().conj()),
                                   at::imag(z.detach().conj())};
  };
  const auto cpu = run(at::kCPU), sim = run(sim0_);
  for (size_t i = 0; i < cpu.size(); ++i)
    EXPECT_TRUE(at::equal(cpu[i].resolve_conj(), sim[i].cpu().resolve_conj())) << i;
}

TEST_F(SimOperator, CopiesThatLibTorchRefusesAreRefusedAtTheCall) {
  const at::Tensor x = x_.to(sim0_).view({12});
  EXPECT_SAYS(x.slice(0, 1, 6).copy_(x.slice(0, 0, 5)), "memory");
  EXPECT_SAYS(at::zeros({1}, sim0_).expand({4}).copy_(x.slice(0, 0, 4)), "single memory location");
  EXPECT_SAYS(x.slice(0, 0, 5).copy_(x.slice(0, 0, 3)), "5");
  EXPECT_EQ(x.sum().cpu().numel(), 1);  // the stream goes on
}

TEST_F(SimOperator, NumbersInCxxAreTakenByEveryOperator) {
  const auto run = [&](c10::Device device) {
    const at::Tensor a = x_.to(device);
    return std::vector<at::Tensor>{
        a.floor_divide(2),  a.copysign(-1.0),        at::rsub(a, 1), a.clone().floor_divide_(2),
        a.pow(2),           a.clone().clamp_(-1, 1), a.fmod(0.5),    a.remainder(0.5),
        at::lerp(a, a, 0.3)};
  };
  const auto cpu = run(at::kCPU), sim = run(sim0_);
  for (size_t i = 0; i < cpu.size(); ++i) expect_same(cpu[i], sim[i]);
}

TEST_F(SimOperator, ForeachAndFusedUpdatesChangeWhatTheyShould) {
  const auto run = [&](c10::Device device) {
    const auto make = [&](double value) {
      return std::vector<at::Tensor>{x_.to(device).mul(value), at::full({5}, value, device)};
    };
    const auto parameters = make(1), gradients = make(0.5), mean = make(0.1), square = make(0.2);
    at::_foreach_mul_(mean, 0.9);
    at::_foreach_add_(mean, gradients, 0.1);
    at::_foreach_addcmul_(square, gradients, gradients, 0.001);
    at::_foreach_addcdiv_(parameters, mean, at::_foreach_sqrt(at::_foreach_abs(square)), -0.01);
    at::_foreach_lerp_(mean, gradients, 0.3);
    const std::vector<at::Tensor> steps{at::ones({}, device), at::ones({}, device)};
    at::_fused_adamw_(parameters, gradients, mean, square, {}, steps, 0.1, 0.9, 0.99, 0.01, 1e-8,
                      false, false);
    auto out = parameters;
    out.insert(out.end(), mean.begin(), mean.end());
    for (const at::Tensor& norm : at::_foreach_norm(gradients)) out.push_back(norm);
    return out;
  };
  const auto cpu = run(at::kCPU), sim = run(sim0_);
  for (size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_TRUE(at::allclose(cpu[i], sim[i].cpu(), 0, 0, /*equal_nan=*/true)) << i;
    EXPECT_EQ(sim[i].device(), sim0_);
  }
}

TEST_F(SimOperator, FactoriesThatChooseByDeviceAndStoragesWork) {
  expect_same(at::kaiser_window(8), at::kaiser_window(8, at::device(sim0_)));
  const at::Tensor a = x_.to(sim0_);
  at::Tensor b = at::empty({0}, sim0_);
  b.set_(a.storage());
  EXPECT_TRUE(at::equal(b.cpu(), x_.view({12})));
  EXPECT_TRUE(b.storage().is_alias_of(a.storage()));
}

TEST_F(SimOperator,
       RecurrentLayersAgreeToRounding) {  // LibTorch's own, which sums in another order on the CPU
  for (const auto type : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::randn({7, 3, 8}, type), h = at::zeros({1, 3, 16}, type);
    const std::vector<at::Tensor> w{at::randn({48, 8}, type), at::randn({48, 16}, type),
                                    at::randn({48}, type), at::randn({48}, type)};
    const auto run = [&](c10::Device device) {
      std::vector<at::Tensor> parameters;
      for (const auto& tensor : w) parameters.push_back(tensor.to(device));
      return std::get<0>(
          at::gru(x.to(device), h.to(device), parameters, true, 1, 0.0, false, false, false));
    };
    const double bound = 64 * (type == at::kFloat ? 1.2e-7 : 2.3e-16);
    EXPECT_LE((run(at::kCPU) - run(sim0_).cpu()).abs().max().item<double>(), bound);
  }
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
