#include "bellows/optim/lbfgs.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/zeros.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/optim/saved_state.h"
#include "bellows/optim/state_table.h"
#include "bellows/optim/strong_wolfe.h"

namespace bellows::optim {
namespace {

double product(const at::Tensor& a, const at::Tensor& b) {
  return a.dot(b).item<double>();
}

double largest_entry(const at::Tensor& tensor) {
  return tensor.abs().max().item<double>();
}

LBFGSOptions checked(LBFGSOptions options) {
  check_options("LBFGS", options);
  if (!options.max_eval) options.max_eval = options.max_iter * 5 / 4;
  return options;
}

constexpr std::array kTensors{"d", "prev_flat_grad"};
constexpr std::array kLists{"old_dirs", "old_stps"};

void check_part(const std::string& label, const Tree& part, const at::Tensor& parameter,
                std::vector<std::string>& wrong) {
  if (!part.is_tensor()) {
    wrong.push_back(concat(label, ": got ", part.kind(), ", expected a tensor"));
  } else if (part.tensor().sizes() != parameter.sizes()) {
    wrong.push_back(
        concat(label, " has shape ", part.tensor().sizes(), ", expected ", parameter.sizes()));
  }
}

// What is wrong with a parameter's parts; `length` is that of the history.
void check_parts(const std::string& name, const at::Tensor& parameter, const Tree& state,
                 size_t length, std::vector<std::string>& wrong) {
  for (const char* const key : kTensors) {
    const std::string label = name + "." + key;
    if (!state.contains(key)) {
      wrong.push_back(label + " is missing");
    } else {
      check_part(label, state.at(key), parameter, wrong);
    }
  }
  for (const char* const key : kLists) {
    const std::string label = name + "." + key;
    if (!state.contains(key) || !state.at(key).is_list() || state.at(key).list().size() != length) {
      wrong.push_back(concat(label, " is no list of ", length, " tensors"));
      continue;
    }
    for (const Tree& part : state.at(key).list()) check_part(label, part, parameter, wrong);
  }
}

}  // namespace

LBFGS::LBFGS(NamedTensors parameters, LBFGSOptions options)
    : table_(std::make_unique<StateTable>(StateLayout{"LBFGS", {}},
                                          std::vector<NamedTensors>{std::move(parameters)})),
      options_(checked(std::move(options))) {}

LBFGS::~LBFGS() = default;

const NamedTensors& LBFGS::parameters(size_t group) const {
  return table_->parameters(group);
}

double LBFGS::lr(size_t group) const {
  static_cast<void>(parameters(group));  // throws where there is no such group
  return options_.lr;
}

void LBFGS::set_lr(size_t group, double lr) {
  static_cast<void>(parameters(group));
  LBFGSOptions changed = options_;
  changed.lr = lr;
  options_ = checked(std::move(changed));
}

void LBFGS::step() {
  throw ValueError("LBFGS computes the loss several times a step; call step(closure)");
}

// All gradients in one vector, as parameters without one had zeros.
at::Tensor LBFGS::flat_gradient() const {
  const at::Tensor& first = parameters(0)[0].second;
  std::vector<at::Tensor> parts;
  for (const auto& [name, parameter] : parameters(0)) {
    if (parameter.device() != first.device() || parameter.dtype() != first.dtype()) {
      throw ValueError(concat("LBFGS: parameter '", name, "' is ", parameter.scalar_type(), " on ",
                              parameter.device(), ", expected ", first.scalar_type(), " on ",
                              first.device(), " as the first"));
    }
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined()) {
      parts.push_back(at::zeros({parameter.numel()}, first.options().requires_grad(false)));
    } else if (gradient.layout() == at::kStrided) {
      parts.push_back(gradient.reshape({-1}));
    } else {
      throw ValueError(concat("LBFGS: the gradient of '", name, "' is ", gradient.layout(),
                              ", expected a dense one"));
    }
  }
  at::Tensor flat = at::cat(parts);
  return options_.maximize ? flat.neg_() : flat;
}

void LBFGS::move(double length, const at::Tensor& direction) const {
  int64_t offset = 0;
  for (const auto& [name, parameter] : parameters(0)) {
    at::Tensor target = parameter;
    target.add_(direction.narrow(0, offset, parameter.numel()).view(parameter.sizes()), length);
    offset += parameter.numel();
  }
}

LBFGS::Point LBFGS::evaluate(const LossClosure& closure) const {
  const at::AutoGradMode gradients(true);
  const double loss = closure().item<double>();
  const at::AutoGradMode no_gradients(false);
  return {options_.maximize ? -loss : loss, flat_gradient()};
}

at::Tensor LBFGS::times_inverse_hessian(const at::Tensor& gradient) const {
  const Memory& m = memory_;
  std::vector<double> alpha(m.steps.size());
  at::Tensor q = gradient.neg();
  for (size_t i = m.steps.size(); i-- > 0;) {
    alpha[i] = product(m.steps[i], q) * m.rho[i];
    q.add_(m.gradient_changes[i], -alpha[i]);
  }
  q.mul_(m.scale);
  for (size_t i = 0; i < m.steps.size(); ++i) {
    const double beta = product(m.gradient_changes[i], q) * m.rho[i];
    q.add_(m.steps[i], alpha[i] - beta);
  }
  return q;
}

// Takes the last step into the history, and sets the next direction.
void LBFGS::set_direction(const at::Tensor& gradient) {
  Memory& m = memory_;
  if (m.iterations == 1) {
    m.direction = gradient.neg();
    return;
  }
  const at::Tensor change = gradient.sub(m.gradient);
  const at::Tensor step = m.direction.mul(m.length);
  const double curvature = product(change, step);
  if (curvature > 1e-10) {
    if (m.steps.size() == static_cast<size_t>(options_.history_size)) {
      m.gradient_changes.erase(m.gradient_changes.begin());
      m.steps.erase(m.steps.begin());
      m.rho.erase(m.rho.begin());
    }
    m.gradient_changes.push_back(change);
    m.steps.push_back(step);
    m.rho.push_back(1 / curvature);
    m.scale = curvature / product(change, change);
  }
  m.direction = times_inverse_hessian(gradient);
}

// Moves the parameters to what the line search finds.
LBFGS::Point LBFGS::search(const LossClosure& closure, const Point& from, double slope,
                           int64_t& evaluations) {
  Memory& m = memory_;
  std::vector<at::Tensor> before;
  for (const auto& [name, parameter] : parameters(0)) before.push_back(parameter.clone());
  const auto evaluate_at = [&](double length) -> LinePoint {
    move(length, m.direction);
    const Point point = evaluate(closure);
    for (size_t i = 0; i < before.size(); ++i) {
      at::Tensor parameter = parameters(0)[i].second;
      parameter.copy_(before[i]);
    }
    return {length, point.loss, point.gradient, product(point.gradient, m.direction)};
  };
  const LinePoint found =
      strong_wolfe({evaluate_at, largest_entry(m.direction), options_.tolerance_change,
                    *options_.max_eval - evaluations},
                   {0, from.loss, from.gradient, slope}, m.length, evaluations);
  m.length = found.length;
  move(m.length, m.direction);
  return {found.loss, found.gradient};
}

// The memory goes where the model has gone.
void LBFGS::follow_parameters() {
  const at::Tensor& first = parameters(0)[0].second;
  const auto follow = [&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.to(first.device(), first.scalar_type());
  };
  follow(memory_.direction);
  follow(memory_.gradient);
  for (at::Tensor& change : memory_.gradient_changes) follow(change);
  for (at::Tensor& step : memory_.steps) follow(step);
}

at::Tensor LBFGS::step(const LossClosure& closure) {
  const at::AutoGradMode no_gradients(false);
  Memory& m = memory_;
  follow_parameters();
  at::Tensor first_loss;
  Point now = evaluate([&] { return first_loss = closure(); });
  int64_t evaluated = 1;
  ++m.evaluations;
  if (largest_entry(now.gradient) <= options_.tolerance_grad) return first_loss;
  for (int64_t iteration = 1; iteration <= options_.max_iter; ++iteration) {
    ++m.iterations;
    set_direction(now.gradient);
    m.gradient = now.gradient;
    m.loss = now.loss;
    m.length = options_.lr;
    if (m.iterations == 1) {
      m.length *= std::min(1.0, 1 / now.gradient.abs().sum().item<double>());
    }
    const double slope = product(now.gradient, m.direction);
    if (slope > -options_.tolerance_change) break;

    int64_t new_evaluations = 0;
    const bool last = iteration == options_.max_iter;
    if (options_.line_search_fn) {
      new_evaluations = evaluated;
      now = search(closure, now, slope, new_evaluations);
    } else {
      move(m.length, m.direction);
      if (!last) {
        now = evaluate(closure);
        new_evaluations = 1;
      }
    }
    evaluated += new_evaluations;
    m.evaluations += new_evaluations;
    if (last || evaluated >= *options_.max_eval ||
        largest_entry(now.gradient) <= options_.tolerance_grad ||
        largest_entry(m.direction.mul(m.length)) <= options_.tolerance_change ||
        std::abs(now.loss - m.loss) < options_.tolerance_change) {
      break;
    }
  }
  drop_autocast_casts();
  return first_loss;
}

Tree LBFGS::part_of(const at::Tensor& flat, size_t member) const {
  int64_t offset = 0;
  for (size_t i = 0; i < member; ++i) offset += parameters(0)[i].second.numel();
  const at::Tensor& parameter = parameters(0)[member].second;
  return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

Tree::Dict LBFGS::state_of(size_t member) const {
  const auto parts_of = [&](const std::vector<at::Tensor>& history) {
    Tree::List parts;
    for (const at::Tensor& flat : history) parts.push_back(part_of(flat, member));
    return parts;
  };
  return {{"d", part_of(memory_.direction, member)},
          {"prev_flat_grad", part_of(memory_.gradient, member)},
          {"old_dirs", parts_of(memory_.gradient_changes)},
          {"old_stps", parts_of(memory_.steps)}};
}

Tree LBFGS::search_state() const {
  const Memory& m = memory_;
  return Tree::Dict{{"func_evals", m.evaluations},
                    {"n_iter", m.iterations},
                    {"t", m.length},
                    {"ro", Tree::List(m.rho.begin(), m.rho.end())},
                    {"H_diag", m.scale},
                    {"prev_loss", m.loss}};
}

Tree LBFGS::state_dict() const {
  Tree::Dict group = options_to_tree(options_);
  write_initial_lr(0, group);
  Tree::List names;
  Tree::Dict states;
  for (size_t member = 0; member < parameters(0).size(); ++member) {
    const std::string& name = parameters(0)[member].first;
    names.emplace_back(name);
    if (memory_.direction.defined()) states[name] = state_of(member);
  }
  group["params"] = std::move(names);
  return Tree::Dict{{"name", "LBFGS"},
                    {"groups", Tree::List{std::move(group)}},
                    {"state", std::move(states)},
                    {"search", search_state()}};
}

LBFGS::Memory LBFGS::read(const Tree& saved, const std::vector<const Tree*>& states) const {
  Memory m;
  const Tree& search = saved.at("search");
  m.evaluations = search.at("func_evals").integer();
  m.iterations = search.at("n_iter").integer();
  m.length = search.at("t").number();
  m.scale = search.at("H_diag").number();
  m.loss = search.at("prev_loss").number();
  for (const Tree& rho : search.at("ro").list()) m.rho.push_back(rho.number());
  if (states.empty() || states[0] == nullptr) return m;
  const at::Tensor& first = parameters(0)[0].second;
  const auto joined = [&](const auto& part) {
    std::vector<at::Tensor> parts;
    for (const Tree* state : states) {
      parts.push_back(part(*state).tensor().to(first.device(), first.scalar_type()).reshape({-1}));
    }
    return at::cat(parts);
  };
  m.direction = joined([](const Tree& state) -> const Tree& { return state.at("d"); });
  m.gradient = joined([](const Tree& state) -> const Tree& { return state.at("prev_flat_grad"); });
  for (size_t i = 0; i < m.rho.size(); ++i) {
    m.gradient_changes.push_back(
        joined([&](const Tree& state) -> const Tree& { return state.at("old_dirs")[i]; }));
    m.steps.push_back(
        joined([&](const Tree& state) -> const Tree& { return state.at("old_stps")[i]; }));
  }
  return m;
}

void LBFGS::load_state_dict(const Tree& state) {
  const at::AutoGradMode no_gradients(false);
  const size_t length = state.contains("search") ? state.at("search").at("ro").list().size() : 0;
  const SavedState saved =
      match_saved(*this, state,
                  [&](const std::string& name, const at::Tensor& parameter, const Tree& values,
                      const Tree&, std::vector<std::string>& wrong) {
                    check_parts(name, parameter, values, length, wrong);
                  });
  const auto missing = std::ranges::count(saved.states[0], nullptr);
  if (missing != 0 && missing != std::ssize(saved.states[0])) {
    throw ValueError("LBFGS: the saved state has some of the parameters only");
  }
  LBFGSOptions options = options_;
  options_from_tree(*saved.options[0], options);
  options = checked(std::move(options));
  memory_ = read(state, saved.states[0]);
  options_ = std::move(options);
  read_initial_lr(0, *saved.options[0]);
}

void visit_options(OptionVisitor& visitor, LBFGSOptions& options) {
  visitor.number("lr", options.lr, kNotNegative);
  visitor.integer("max_iter", options.max_iter, {.low = 0});
  visitor.optional_integer("max_eval", options.max_eval, {.low = 0});
  visitor.number("tolerance_grad", options.tolerance_grad, kAnyNumber);
  visitor.number("tolerance_change", options.tolerance_change, kAnyNumber);
  visitor.integer("history_size", options.history_size, {.low = 1});
  visitor.word("line_search_fn", options.line_search_fn, {"strong_wolfe"});
  visitor.flag("maximize", options.maximize);
}

}  // namespace bellows::optim
