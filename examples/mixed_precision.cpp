// Mixed precision by hand: autocast to float16, a scaled loss, clipping of unscaled gradients,
// steps skipped where one overflows. Run: build/release/bin/example_mixed_precision Prints last:
// "loss <first> -> <last>, <n> steps, <m> skipped, scale <s>".
#include <iostream>

#include <ATen/Functions.h>

#include <bellows/bellows.h>
#include <bellows/nn/from_module.h>
#include <bellows/nn/mlp.h>

using namespace bellows;

int main() {
  init();
  seed_everything(1);
  const c10::Device device = pick_device("auto").device;
  const nn::Model model =
      nn::from_module(nn::Mlp(nn::MlpOptions{.in_features = 16, .hidden = {64}, .classes = 4}));
  model.to(device);
  optim::AdamW optimizer(model.named_parameters(), {.lr = 3e-3});
  amp::GradScaler scaler;

  const at::Tensor inputs = at::randn({256, 16}).to(device);
  const at::Tensor targets = inputs.slice(1, 0, 4).argmax(1);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const amp::Autocast autocast(device, {.dtype = at::kHalf});
      loss = at::cross_entropy_loss(model.forward(inputs).tensor(), targets);
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    optim::clip_grad_norm_(model.named_parameters(), 1.0);
    scaler.step(optimizer);  // false: skipped; then a schedule stays where it is, too
    scaler.update();
    last = loss.item<float>();
    if (step == 0) first = last;
  }
  std::cout << "loss " << first << " -> " << last << ", " << scaler.steps_taken() << " steps, "
            << scaler.steps_skipped() << " skipped, scale " << scaler.get_scale() << '\n';
  return last < first ? 0 : 1;
}
