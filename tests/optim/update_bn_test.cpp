#include <stdexcept>

#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include "bellows/optim/averaged_model.h"

namespace bellows::optim {
namespace {

struct Net {
  torch::nn::BatchNorm1d norm{torch::nn::BatchNormOptions(4).momentum(0.3)};
  torch::nn::Sequential net{torch::nn::Linear(3, 4), norm};
  std::vector<at::Tensor> batches{at::randn({8, 3}), at::randn({8, 3}).mul(3),
                                  at::randn({8, 3}).add(1)};
  size_t next = 0;

  bool forward_next() {
    if (next == batches.size()) return false;
    net->forward(batches[next++]);
    return true;
  }
};

TEST(UpdateBnTest, StatisticsAreEqualAveragesOverTheBatches) {
  Net net;
  net.net->forward(at::randn({8, 3}).mul(50));  // to be forgotten
  net.net->eval();
  update_bn(*net.net, [&] { return net.forward_next(); });
  std::vector<at::Tensor> means, variances;
  for (const at::Tensor& batch : net.batches) {
    const at::Tensor hidden = net.net[0]->as<torch::nn::Linear>()->forward(batch);
    means.push_back(hidden.mean(0));
    variances.push_back(hidden.var(0));
  }
  EXPECT_TRUE(at::allclose(net.norm->running_mean, at::stack(means).mean(0), 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(net.norm->running_var, at::stack(variances).mean(0), 1e-5, 1e-5));
  EXPECT_EQ(net.norm->options.momentum(), 0.3);
  EXPECT_FALSE(net.net->is_training());
}

TEST(UpdateBnTest, AnErrorLeavesMomentumAndModeAsTheyWere) {
  Net net;
  net.net->eval();
  EXPECT_THROW(update_bn(*net.net, []() -> bool { throw std::runtime_error("no batch"); }),
               std::runtime_error);
  EXPECT_EQ(net.norm->options.momentum(), 0.3);
  EXPECT_FALSE(net.net->is_training());
}

TEST(UpdateBnTest, WithoutSuchLayersNothingIsRun) {
  torch::nn::Linear linear(2, 2);
  update_bn(*linear, []() -> bool { throw std::runtime_error("not to be called"); });
}

}  // namespace
}  // namespace bellows::optim
