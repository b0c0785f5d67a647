// The options and states of LibTorch's optimizers, member by member. For adapt.cpp.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace bellows::optim {

// members(object, visit): visit(key, value) for every member, to be read or assigned.

template <class Visit>
void members(torch::optim::SGDOptions& o, Visit visit) {
  visit("lr", o.lr());
  visit("momentum", o.momentum());
  visit("dampening", o.dampening());
  visit("weight_decay", o.weight_decay());
  visit("nesterov", o.nesterov());
}
template <class Visit>
void members(torch::optim::SGDParamState& s, Visit visit) {
  visit("momentum_buffer", s.momentum_buffer());
}

template <class AdamOptions, class Visit>
void adam_options(AdamOptions& o, Visit visit) {
  visit("lr", o.lr());
  visit("beta1", std::get<0>(o.betas()));
  visit("beta2", std::get<1>(o.betas()));
  visit("eps", o.eps());
  visit("weight_decay", o.weight_decay());
  visit("amsgrad", o.amsgrad());
}
template <class AdamState, class Visit>
void adam_state(AdamState& s, Visit visit) {
  visit("step", s.step());
  visit("exp_avg", s.exp_avg());
  visit("exp_avg_sq", s.exp_avg_sq());
  visit("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class Visit>
void members(torch::optim::AdamOptions& o, Visit visit) {
  adam_options(o, visit);
}
template <class Visit>
void members(torch::optim::AdamParamState& s, Visit visit) {
  adam_state(s, visit);
}
template <class Visit>
void members(torch::optim::AdamWOptions& o, Visit visit) {
  adam_options(o, visit);
}
template <class Visit>
void members(torch::optim::AdamWParamState& s, Visit visit) {
  adam_state(s, visit);
}

template <class Visit>
void members(torch::optim::RMSpropOptions& o, Visit visit) {
  visit("lr", o.lr());
  visit("alpha", o.alpha());
  visit("eps", o.eps());
  visit("weight_decay", o.weight_decay());
  visit("momentum", o.momentum());
  visit("centered", o.centered());
}
template <class Visit>
void members(torch::optim::RMSpropParamState& s, Visit visit) {
  visit("step", s.step());
  visit("square_avg", s.square_avg());
  visit("momentum_buffer", s.momentum_buffer());
  visit("grad_avg", s.grad_avg());
}

template <class Visit>
void members(torch::optim::AdagradOptions& o, Visit visit) {
  visit("lr", o.lr());
  visit("lr_decay", o.lr_decay());
  visit("weight_decay", o.weight_decay());
  visit("initial_accumulator_value", o.initial_accumulator_value());
  visit("eps", o.eps());
}
template <class Visit>
void members(torch::optim::AdagradParamState& s, Visit visit) {
  visit("step", s.step());
  visit("sum", s.sum());
}

template <class Visit>
void members(torch::optim::LBFGSOptions& o, Visit visit) {
  visit("lr", o.lr());
  visit("max_iter", o.max_iter());
  visit("max_eval", o.max_eval());
  visit("tolerance_grad", o.tolerance_grad());
  visit("tolerance_change", o.tolerance_change());
  visit("history_size", o.history_size());
  visit("line_search_fn", o.line_search_fn());
}
template <class Visit>
void members(torch::optim::LBFGSParamState& s, Visit visit) {
  visit("func_evals", s.func_evals());
  visit("n_iter", s.n_iter());
  visit("t", s.t());
  visit("prev_loss", s.prev_loss());
  visit("d", s.d());
  visit("H_diag", s.H_diag());
  visit("prev_flat_grad", s.prev_flat_grad());
  visit("old_dirs", s.old_dirs());
  visit("old_stps", s.old_stps());
  visit("ro", s.ro());
  visit("al", s.al());
}

}  // namespace bellows::optim
