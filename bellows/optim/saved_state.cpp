#include "bellows/optim/saved_state.h"

#include <algorithm>
#include <map>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::optim {
namespace {

bool same(const Tree& a, const Tree& b) {
  if (a.is_list() && b.is_list()) return std::ranges::equal(a.list(), b.list(), same);
  if (a.is_string() && b.is_string()) return a.string() == b.string();
  if (a.is_bool() && b.is_bool()) return a.boolean() == b.boolean();
  const auto is_number = [](const Tree& tree) { return tree.is_int() || tree.is_double(); };
  if (is_number(a) && is_number(b)) return a.number() == b.number();
  return a.empty() && b.empty();
}

bool same_options(const Tree& a, const Tree& b) {
  return std::ranges::equal(a.dict(), b.dict(), [](const auto& left, const auto& right) {
    return left.first == right.first && (left.first == "params" || same(left.second, right.second));
  });
}

std::map<std::string, const Tree*> groups_by_name(const Tree& saved) {
  std::map<std::string, const Tree*> groups;
  for (const Tree& group : saved.at("groups").list()) {
    for (const Tree& name : group.at("params").list()) groups[name.string()] = &group;
  }
  return groups;
}

std::string listed(const std::string& what, const std::vector<std::string>& entries) {
  constexpr size_t kShown = 20;
  if (entries.empty()) return "";
  const size_t shown = std::min(entries.size(), kShown);
  const std::string more =
      entries.size() > shown ? concat(" and ", entries.size() - shown, " more") : "";
  return "; " + what + ": " + join(std::span(entries).first(shown)) + more;
}

const Tree* joined_options(const Optimizer& optimizer, size_t group,
                           const std::map<std::string, const Tree*>& groups) {
  const Tree* options = nullptr;
  for (const auto& [name, parameter] : optimizer.parameters(group)) {
    const Tree* own = groups.at(name);
    if (options == nullptr) options = own;
    if (own == options || same_options(*own, *options)) continue;
    throw ValueError(concat(optimizer.name(), ": group ", group,
                            " joins parameters that were saved in groups of different options ('",
                            options->at("params")[0].string(), "' and '", name,
                            "'); keep them in separate groups"));
  }
  return options;
}

}  // namespace

SavedState match_saved(const Optimizer& optimizer, const Tree& saved, const StateCheck& check) {
  const std::string own(optimizer.name());
  if (saved.at("name").string() != own) {
    throw ValueError(own + ": got the state of " + saved.at("name").string() +
                     ", expected that of " + own + "; make the optimizer that was saved");
  }
  std::map<std::string, const Tree*> groups = groups_by_name(saved);
  const Tree::Dict& states = saved.at("state").dict();
  SavedState result;
  std::vector<std::string> missing, unexpected, wrong;
  std::map<std::string, bool> names;
  for (size_t group = 0; group < optimizer.group_count(); ++group) {
    result.states.emplace_back();
    for (const auto& [name, parameter] : optimizer.parameters(group)) {
      names[name] = true;
      const auto options = groups.find(name);
      const auto state = states.find(name);
      const bool has_state = state != states.end();
      result.states[group].push_back(has_state ? &state->second : nullptr);
      if (options == groups.end()) {
        missing.push_back(name);
      } else if (has_state) {
        check(name, parameter, state->second, *options->second, wrong);
      }
    }
  }
  for (const auto& [name, state] : states) groups.emplace(name, nullptr);
  for (const auto& [name, group] : groups) {
    if (!names.contains(name)) unexpected.push_back(name);
  }
  if (!missing.empty() || !unexpected.empty() || !wrong.empty()) {
    throw ValueError(own + ": the saved state does not fit these parameters" +
                     listed("missing", missing) + listed("unexpected", unexpected) +
                     listed("wrong", wrong));
  }
  for (size_t group = 0; group < optimizer.group_count(); ++group) {
    result.options.push_back(joined_options(optimizer, group, groups));
  }
  return result;
}

}  // namespace bellows::optim
