#include <cmath>
#include <limits>

#include "bellows/optim/adamw.h"
#include "bellows/optim/sgd.h"

namespace bellows::optim {
namespace {

constexpr double kLargest = std::numeric_limits<double>::max();

SGDOptions sgd_options(Options& options) {
  SGDOptions read;
  read.lr = options.get_in("lr", read.lr, 0.0, kLargest);
  read.momentum = options.get_in("momentum", read.momentum, 0.0, kLargest);
  read.dampening = options.get_in("dampening", read.dampening, -kLargest, kLargest);
  read.weight_decay = options.get_in("weight_decay", read.weight_decay, 0.0, kLargest);
  read.nesterov = options.get("nesterov", read.nesterov);
  read.maximize = options.get("maximize", read.maximize);
  if (read.nesterov && (read.momentum == 0 || read.dampening != 0)) {
    options.fail("nesterov", "got true, which needs a momentum above 0 and no dampening");
  }
  return read;
}

AdamWOptions adamw_options(Options& options) {
  AdamWOptions read;
  read.lr = options.get_in("lr", read.lr, 0.0, kLargest);
  const auto betas =
      options.get("betas", std::vector<double>(read.betas.begin(), read.betas.end()));
  const auto bad = [](double beta) { return !(beta >= 0 && beta < 1); };
  if (betas.size() != 2 || bad(betas[0]) || bad(betas[1])) {
    options.fail("betas", "got " + to_toml(betas) + ", expected two numbers from 0 to below 1");
  }
  read.betas = {betas[0], betas[1]};
  read.eps = options.get_in("eps", read.eps, 0.0, kLargest);
  read.weight_decay = options.get_in("weight_decay", read.weight_decay, 0.0, kLargest);
  read.amsgrad = options.get("amsgrad", read.amsgrad);
  read.maximize = options.get("maximize", read.maximize);
  return read;
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(Options& options, NamedTensors parameters) {
  const std::string name = options.get_one_of("name", "adamw", {"sgd", "adamw", "SGD", "AdamW"});
  if (name == "sgd" || name == "SGD") {
    return std::make_unique<SGD>(std::move(parameters), sgd_options(options));
  }
  return std::make_unique<AdamW>(std::move(parameters), adamw_options(options));
}

}  // namespace bellows::optim
