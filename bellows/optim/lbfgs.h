// L-BFGS, which computes the loss several times a step. Sources: "Updating Quasi-Newton Matrices
// with Limited Storage" (Nocedal 1980), "Numerical Optimization" (Nocedal, Wright 2006), chapters 3
// and 7, torch/optim/lbfgs.py.
#pragma once

#include "bellows/optim/optimizer.h"
#include "bellows/optim/option_visitor.h"

namespace bellows::optim {

class StateTable;

struct LBFGSOptions {
  double lr = 1;
  int64_t max_iter = 20;
  /// Of the loss, in one step; nothing: max_iter * 5 / 4.
  std::optional<int64_t> max_eval = std::nullopt;
  double tolerance_grad = 1e-7;
  double tolerance_change = 1e-9;
  int64_t history_size = 100;
  /// "strong_wolfe", or nothing: steps of length lr.
  std::optional<std::string> line_search_fn = std::nullopt;
  bool maximize = false;
};

/// One group; all parameters of one type and on one device. Keeps 2 history_size + 3 copies of the
/// parameters. State: by parameter name d, prev_flat_grad, old_dirs, old_stps (the parameter's
/// parts); under "search" func_evals, n_iter, t, ro, H_diag, prev_loss.
class LBFGS : public Optimizer {
 public:
  /// Throws ValueError for options out of PyTorch's ranges, and for parameters as
  /// NamedStateOptimizer.
  explicit LBFGS(NamedTensors parameters, LBFGSOptions options = {});
  ~LBFGS() override;

  std::string_view name() const override { return "LBFGS"; }
  /// Throws ValueError: it needs the closure.
  void step() override;
  /// Up to max_iter iterations. Returns the loss before the first.
  at::Tensor step(const LossClosure& closure) override;

  size_t group_count() const override { return 1; }
  const NamedTensors& parameters(size_t group) const override;
  double lr(size_t group) const override;
  void set_lr(size_t group, double lr) override;
  const LBFGSOptions& options() const { return options_; }

  Tree state_dict() const override;
  void load_state_dict(const Tree& state) override;

 private:
  /// Of all parameters in one vector each, as all tensors here.
  struct Memory {
    at::Tensor direction;
    at::Tensor gradient;  // of the last iteration
    std::vector<at::Tensor> gradient_changes, steps;
    std::vector<double> rho;
    double length = 0;  // of the last step, in directions
    double scale = 1;   // of the first estimate of the inverse Hessian
    double loss = 0;    // before the last step
    int64_t evaluations = 0, iterations = 0;
  };
  struct Point {
    double loss = 0;
    at::Tensor gradient;
  };

  void follow_parameters();
  at::Tensor flat_gradient() const;
  void move(double length, const at::Tensor& direction) const;
  Point evaluate(const LossClosure& closure) const;
  void set_direction(const at::Tensor& gradient);
  at::Tensor times_inverse_hessian(const at::Tensor& gradient) const;
  Point search(const LossClosure& closure, const Point& from, double slope, int64_t& evaluations);
  Tree part_of(const at::Tensor& flat, size_t member) const;
  Tree::Dict state_of(size_t member) const;
  Tree search_state() const;
  Memory read(const Tree& saved, const std::vector<const Tree*>& states) const;

  std::unique_ptr<StateTable> table_;
  LBFGSOptions options_;
  Memory memory_;
};

void visit_options(OptionVisitor& visitor, LBFGSOptions& options);

}  // namespace bellows::optim
