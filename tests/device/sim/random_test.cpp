#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>

#include "bellows/device/seed.h"
#include "tests/device/sim/fixture.h"

namespace bellows {
namespace {

class SimRandom : public SimTest {
 protected:
  at::Generator of(c10::Device device) { return at::globalContext().defaultGenerator(device); }
};

TEST_F(SimRandom, ASeedGivesTheCpusNumbersOnEveryDevice) {
  const auto draw = [](c10::Device device) {
    return std::vector<at::Tensor>{at::randn({50}, device),
                                   at::rand({5}, at::device(device).dtype(at::kDouble)),
                                   at::randint(1000, {9}, device),
                                   at::randperm(20, device),
                                   at::empty({9}, device).exponential_(),
                                   at::bernoulli(at::full({20}, 0.3, device)),
                                   at::multinomial(at::ones({10}, device), 4),
                                   at::dropout(at::ones({30}, device), 0.4, true)};
  };
  for (const c10::Device device : {sim0_, sim1_}) {
    at::manual_seed(3);
    const auto cpu = draw(at::kCPU);
    const auto sim = draw(device);
    for (size_t i = 0; i < cpu.size(); ++i) EXPECT_TRUE(at::equal(cpu[i], sim[i].cpu())) << i;
  }
}

TEST_F(SimRandom, DevicesDrawIndependently) {
  at::manual_seed(3);
  const at::Tensor first = at::randn({5}, sim0_);
  const at::Tensor state = of(at::kCPU).get_state();
  const at::Tensor second = at::randn({5}, sim0_);
  EXPECT_FALSE(at::equal(first.cpu(), second.cpu()));
  EXPECT_TRUE(at::equal(at::randn({5}, sim1_).cpu(), first.cpu()));  // not moved by sim:0
  EXPECT_TRUE(at::equal(state, of(at::kCPU).get_state()));
}

TEST_F(SimRandom, OneDeviceCanBeSeeded) {
  of(sim1_).set_current_seed(11);
  const at::Tensor first = at::randn({5}, sim1_);
  of(sim1_).set_current_seed(11);
  EXPECT_TRUE(at::equal(first.cpu(), at::randn({5}, sim1_).cpu()));
  EXPECT_EQ(of(sim1_).current_seed(), 11);
}

TEST_F(SimRandom, AnOwnGeneratorServesAndAnotherKindsIsRefused) {
  at::Generator own = at::globalContext().getAcceleratorHooksInterface().getNewGenerator(1);
  own.set_current_seed(5);
  at::Generator cpu = at::detail::createCPUGenerator(5);
  EXPECT_TRUE(at::equal(at::randn({7}, own, at::device(sim1_)).cpu(), at::randn({7}, cpu)));
  at::Generator copy = own.clone();
  EXPECT_TRUE(at::equal(at::randn({7}, own, at::device(sim1_)).cpu(),
                        at::randn({7}, copy, at::device(sim1_)).cpu()));
  EXPECT_SAYS(at::randn({7}, cpu, at::device(sim1_)), "generator of a simulated device");
}

TEST_F(SimRandom, TheStateOfAllGeneratorsIsSavedAndRestored) {
  RandomState states;
  const Tree saved = states.state_dict();
  for (const char* name : {"cpu", "sim:0", "sim:3"}) EXPECT_TRUE(saved.contains(name)) << name;
  const at::Tensor first = at::randn({5}, sim1_);
  states.load_state_dict(saved);
  EXPECT_TRUE(at::equal(first.cpu(), at::randn({5}, sim1_).cpu()));
}

TEST_F(SimRandom, NativeDropoutDrawsFromTheDevice) {
  at::manual_seed(4);
  const auto [cpu, cpu_mask] = at::native_dropout(at::ones({40}), 0.3, true);
  const at::Tensor state = of(at::kCPU).get_state();
  const auto [sim, sim_mask] = at::native_dropout(at::ones({40}, sim0_), 0.3, true);
  EXPECT_TRUE(at::equal(cpu, sim.cpu()));
  EXPECT_TRUE(at::equal(cpu_mask, sim_mask.cpu()));
  EXPECT_TRUE(at::equal(state, of(at::kCPU).get_state()));
}

}  // namespace
}  // namespace bellows
