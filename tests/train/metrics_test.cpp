#include "bellows/train/metrics.h"

#include <cmath>
#include <limits>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace bellows::train {
namespace {

StepOutput output(double loss, double accuracy) {
  return {at::full({}, loss, at::kDouble), {{"accuracy", at::full({}, accuracy, at::kDouble)}}};
}

TEST(MeanMetricsTest, WeighsBatchesByTheirSamples) {
  MeanMetrics metrics;
  metrics.add(output(1.0, 0.5), 30, 1);
  metrics.add(output(4.0, 1.0), 10, 2);
  EXPECT_DOUBLE_EQ(metrics.means().at("loss"), 1.75);
  EXPECT_DOUBLE_EQ(metrics.means().at("accuracy"), 0.625);
  EXPECT_EQ(metrics.samples(), 40);
}

TEST(MeanMetricsTest, KeepsNoGraphAlive) {
  MeanMetrics metrics;
  at::Tensor weight = at::ones({3}).requires_grad_();
  const at::Tensor loss = weight.sum();
  metrics.add({loss, {}}, 1, 1);
  EXPECT_EQ(metrics.pending(), 0u);
  EXPECT_EQ(loss.use_count(), 1u);
}

TEST(MeanMetricsTest, FirstLossThatIsNotFiniteIsReportedByStep) {
  MeanMetrics metrics;
  metrics.add(output(1.0, 0), 1, 1);
  EXPECT_EQ(metrics.collect(), -1);
  metrics.add(output(std::numeric_limits<double>::infinity(), 0), 1, 2);
  metrics.add(output(std::nan(""), 0), 1, 3);
  EXPECT_EQ(metrics.collect(), 2);
  metrics.reset();
  EXPECT_EQ(metrics.collect(), -1);
}

TEST(MeanMetricsTest, WindowGoesOnOverReset) {
  MeanMetrics metrics;
  metrics.add(output(1.0, 0), 1, 1);
  metrics.reset();
  metrics.add(output(3.0, 0), 1, 2);
  EXPECT_DOUBLE_EQ(metrics.take_window_loss(), 2.0);
  EXPECT_TRUE(std::isnan(metrics.take_window_loss()));
}

TEST(MeanMetricsTest, StateRestoresSumsAndWindow) {
  MeanMetrics metrics, other;
  metrics.add(output(1.0 / 3, 0.1), 7, 1);
  other.load_state_dict(metrics.state_dict());
  metrics.add(output(2.0, 0.3), 3, 2);
  other.add(output(2.0, 0.3), 3, 2);
  EXPECT_EQ(metrics.means(), other.means());
  EXPECT_EQ(metrics.take_window_loss(), other.take_window_loss());
  EXPECT_EQ(metrics.samples(), other.samples());
}

}  // namespace
}  // namespace bellows::train
