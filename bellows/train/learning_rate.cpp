#include "bellows/train/learning_rate.h"

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::train {

LearningRate::LearningRate(optim::Optimizer& optimizer,
                           std::shared_ptr<const optim::Schedule> schedule)
    : LearningRate(optimizer, optim::ScheduleChoice{.schedule = std::move(schedule)}) {}

LearningRate::LearningRate(optim::Optimizer& optimizer, optim::ScheduleChoice choice)
    : optimizer_(optimizer), choice_(std::move(choice)) {
  if (choice_.is_constant()) throw ValueError("LearningRate: the schedule is null");
  for (size_t group = 0; group < optimizer.group_count(); ++group)
    initial_.push_back(optimizer.lr(group));
  if (choice_.plateau) {
    plateau_ = std::make_unique<optim::ReduceLROnPlateau>(optimizer, *choice_.plateau);
  }
}

void LearningRate::set_rates(int64_t step) {
  for (size_t group = 0; group < initial_.size(); ++group) {
    optim::apply(*choice_.schedule, optimizer_, group, initial_[group], step);
  }
}

void LearningRate::on_start(Trainer& /*trainer*/, const Progress& progress) {
  if (!plateau_) return set_rates(choice_.by_epoch ? progress.epoch : progress.step);
  for (size_t group = 0; group < initial_.size(); ++group) {
    optimizer_.set_lr(group, plateau_->get_last_lr()[group]);
  }
}

void LearningRate::on_step(Trainer& /*trainer*/, const Progress& progress) {
  if (choice_.schedule && !choice_.by_epoch) set_rates(progress.step);
}

void LearningRate::on_epoch(Trainer& /*trainer*/, const Progress& progress, const Values& values) {
  if (!choice_.by_epoch) return;
  if (!plateau_) return set_rates(progress.epoch);
  const auto found = values.find(choice_.metric);
  if (found == values.end()) {
    std::vector<std::string> names;
    for (const auto& [name, value] : values) names.push_back(name);
    throw ValueError("the schedule watches " + choice_.metric +
                     ", which this run does not report; it reports " + join(names));
  }
  plateau_->step(found->second);
}

Tree LearningRate::state_dict() const {
  if (!plateau_) return Tree::Dict{};
  Tree state = plateau_->state_dict();
  state.dict()["initial"] = Tree::List(initial_.begin(), initial_.end());
  return state;
}

void LearningRate::load_state_dict(const Tree& state) {
  if (!plateau_) return;
  Tree own = state;
  Tree::List& rates = own.dict().at("_last_lr").list();
  const Tree::List& initial = state.at("initial").list();
  for (size_t group = 0; group < rates.size() && group < initial_.size(); ++group) {
    const double before = initial.at(group).number();
    if (before == initial_[group] || before == 0) continue;
    rates[group] = rates[group].number() * (initial_[group] / before);
  }
  plateau_->load_state_dict(own);
}

}  // namespace bellows::train
