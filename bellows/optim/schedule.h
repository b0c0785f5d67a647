// Learning-rate schedules in closed form: the rate at a step is a function of the step alone, so
// that nothing has to be saved, and a resumed run has the same rates. A step is whatever is
// counted: an optimizer's steps, or epochs. Source: torch/optim/lr_scheduler.py, whose names and
// defaults these are; the last bits differ from Python, which multiplies from step to step.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace bellows::optim {

class Schedule {
 public:
  virtual ~Schedule() = default;
  /// The rate at step `step` (0 is the first) of parameter group `group`, whose rate was `initial`.
  /// Throws ValueError for a group the schedule has no values for, where it has them by group.
  virtual double rate(double initial, int64_t step, size_t group = 0) const = 0;
  /// The momentum (the first of `betas`) at that step; nothing: it is left alone.
  virtual std::optional<double> momentum(int64_t step, size_t group = 0) const;
  /// Whether it scales whatever rate it is given, step by step, so that ChainedScheduler takes it.
  virtual bool chains() const { return false; }
  /// Whether it begins with the rate of now instead of the rate the optimizer was made with.
  virtual bool begins_now() const { return false; }
};

/// The initial rate times a factor.
class FactorSchedule : public Schedule {
 public:
  double rate(double initial, int64_t step, size_t /*group*/ = 0) const final {
    return initial * factor(step);
  }
  bool chains() const override { return true; }
  virtual double factor(int64_t step) const = 0;
};

/// From start_factor to end_factor in a straight line over total_iters steps, then constant.
struct LinearLROptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  int64_t total_iters = 5;
};

class LinearLR : public FactorSchedule {
 public:
  /// Throws ValueError for factors outside of PyTorch's ranges (start in (0, 1], end in [0, 1]) or
  /// total_iters < 1.
  explicit LinearLR(LinearLROptions options = {});
  double factor(int64_t step) const override;

 private:
  LinearLROptions options_;
};

/// `factor` until total_iters, then 1.
struct ConstantLROptions {
  double factor = 1.0 / 3;
  int64_t total_iters = 5;
};

class ConstantLR : public FactorSchedule {
 public:
  /// Throws ValueError for a factor outside of [0, 1] or total_iters < 0.
  explicit ConstantLR(ConstantLROptions options = {});
  double factor(int64_t step) const override;

 private:
  ConstantLROptions options_;
};

/// Times gamma every step_size steps.
struct StepLROptions {
  int64_t step_size = 1;
  double gamma = 0.1;
};

class StepLR : public FactorSchedule {
 public:
  /// Throws ValueError for step_size < 1 or a gamma that is negative or not finite.
  explicit StepLR(StepLROptions options);
  double factor(int64_t step) const override;

 private:
  StepLROptions options_;
};

/// Times gamma at every milestone; at one that comes twice, twice.
struct MultiStepLROptions {
  std::vector<int64_t> milestones = {};
  double gamma = 0.1;
};

class MultiStepLR : public FactorSchedule {
 public:
  /// Throws ValueError for a gamma that is negative or not finite.
  explicit MultiStepLR(MultiStepLROptions options);
  double factor(int64_t step) const override;

 private:
  MultiStepLROptions options_;
};

/// Times gamma every step.
class ExponentialLR : public FactorSchedule {
 public:
  /// Throws ValueError for a gamma that is negative or not finite.
  explicit ExponentialLR(double gamma);
  double factor(int64_t step) const override;

 private:
  double gamma_;
};

/// (1 - step / total_iters) to the power, then 0.
struct PolynomialLROptions {
  int64_t total_iters = 5;
  double power = 1.0;
};

class PolynomialLR : public FactorSchedule {
 public:
  /// Throws ValueError for total_iters < 1 or a power that is negative or not finite.
  explicit PolynomialLR(PolynomialLROptions options = {});
  double factor(int64_t step) const override;

 private:
  PolynomialLROptions options_;
};

using RateFunction = std::function<double(int64_t step)>;

/// The initial rate times lr_lambda(step). One function, or one for each group.
class LambdaLR : public Schedule {
 public:
  /// Throws ValueError for no function or an empty one.
  explicit LambdaLR(std::vector<RateFunction> lr_lambda);
  explicit LambdaLR(RateFunction lr_lambda);
  double rate(double initial, int64_t step, size_t group = 0) const override;

 private:
  std::vector<RateFunction> lambdas_;
};

/// Times lr_lambda(step) at every step from 1 on. One function, or one for each group. Remembers
/// the last product, so that steps in order call it once each. One thread at a time.
class MultiplicativeLR : public Schedule {
 public:
  /// Throws ValueError for no function or an empty one.
  explicit MultiplicativeLR(std::vector<RateFunction> lr_lambda);
  explicit MultiplicativeLR(RateFunction lr_lambda);
  double rate(double initial, int64_t step, size_t group = 0) const override;
  bool chains() const override { return true; }

 private:
  struct Product {
    int64_t step = 0;
    double value = 1;
  };
  std::vector<RateFunction> lambdas_;
  mutable std::vector<Product> products_;
};

}  // namespace bellows::optim
