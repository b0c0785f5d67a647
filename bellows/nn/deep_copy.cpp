#include "bellows/nn/deep_copy.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/parameterdict.h>
#include <torch/nn/modules/container/parameterlist.h>
#include <torch/nn/modules/container/sequential.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/nn/copy_tensors.h"
#include "bellows/nn/layer_members.h"

// LibTorch's door to a module's lists, which only classes of this name may open.
template <>
class torch::nn::Cloneable<bellows::nn::detail::Build> {
 public:
  static void forget_registered(torch::nn::Module& module) {
    module.parameters_.clear();
    module.buffers_.clear();
    module.children_.clear();
  }
};

namespace bellows::nn::detail {
namespace {

/// A module and those in it, each with its name and kind; and which of them are the same.
struct Structure {
  explicit Structure(torch::nn::Module& module) {
    add("", module);
    for (const auto& item : module.named_modules("", /*include_self=*/false))
      add(item.key(), *item.value());
    std::ostringstream out;
    out << module;
    printed = out.str();
  }

  void add(const std::string& name, torch::nn::Module& module) {
    names.push_back(concat(name.empty() ? "the module itself" : name, " (", module.name(), ")"));
    same_as.push_back(std::ranges::find(modules, &module) - modules.begin());
    modules.push_back(&module);
    owners.push_back(module.weak_from_this().use_count());
  }

  std::vector<std::string> names;
  std::vector<size_t> same_as;  // by module: the place where it was first
  std::vector<torch::nn::Module*> modules;
  std::vector<long> owners;  // by module, with the one that lists it here, if any
  std::string printed;       // with the options of LibTorch's own layers
};

std::string misfit(const Structure& original, const Structure& copy) {
  const auto listed = [](const Structure& all) { return join(all.names); };
  if (copy.names != original.names) {
    return concat("its modules are ", listed(copy), ", those of the original ", listed(original));
  }
  for (size_t i = 0; i < copy.modules.size(); ++i) {
    if (std::ranges::find(original.modules, copy.modules[i]) != original.modules.end())
      return concat("it shares ", copy.names[i], " with the original");
  }
  if (copy.same_as != original.same_as)
    return "modules that are one in the original are several in it, or the other way round";
  if (copy.printed != original.printed) {
    return concat("its options differ: it prints as\n", copy.printed, "\nand the original as\n",
                  original.printed, "\n");
  }
  return "";
}

/// Whether it keeps parameters that only its users give it: its reset() does nothing.
bool is_parameter_container(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::ParameterListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ParameterDictImpl*>(&module) != nullptr;
}

/// Gives containers of parameters that are empty in the copy as many as the original's have.
void fill_parameter_containers(const torch::nn::Module& original, torch::nn::Module& copy) {
  if (is_parameter_container(original) && is_parameter_container(copy) &&
      copy.named_parameters(/*recurse=*/false).is_empty()) {
    for (const auto& item : original.named_parameters(/*recurse=*/false)) {
      copy.register_parameter(item.key(), item.value().detach().clone(),
                              item.value().requires_grad());
    }
  }
  const auto ours = copy.named_children();
  for (const auto& child : original.named_children()) {
    if (const auto* found = ours.find(child.key()); found != nullptr)
      fill_parameter_containers(*child.value(), **found);
  }
}

void copy_modes(const Structure& original, const Structure& copy) {
  for (size_t i = 0; i < copy.modules.size(); ++i) {  // a module comes before those in it
    const bool on = original.modules[i]->is_training();
    if (copy.modules[i]->is_training() != on) copy.modules[i]->train(on);
  }
}

/// Makes copies of one module until one is right.
class Copier {
 public:
  explicit Copier(const torch::nn::Module& original)
      : original_(const_cast<torch::nn::Module&>(original)),  // LibTorch lists non-const modules
        before_(original_),
        tensors_(own_tensors(original)) {}

  /// Null where `build` makes none, or not a right one.
  ModulePointer attempt(const Build& build, const std::string& what) {
    const KeepRandomState keep;
    ModulePointer copy;
    std::string fault;
    try {
      copy = build();
    } catch (const c10::Error& error) {
      fault = error.what_without_backtrace();
    }
    const Structure after(original_);
    if (tensors_.restore() || after.names != before_.names) {
      throw ValueError(concat("deep_copy: ", what, " of ", original_.name(),
                              " changes the original, expected it to make members anew. Give a "
                              "factory: deep_copy(module, factory)."));
    }
    if (copy) {
      if (copy.get() != &original_) fill_parameter_containers(original_, *copy);
      const Structure structure(*copy);
      fault = misfit(before_, structure);
      if (fault.empty()) fault = tensors_.misfit(own_tensors(*copy));
      if (fault.empty()) fault = copy_layer_members(original_, *copy);
      if (fault.empty()) fault = kept(after);
      if (fault.empty()) {
        tensors_.give_to(own_tensors(*copy));
        copy_modes(before_, structure);
        return copy;
      }
    }
    if (!fault.empty()) faults_.push_back(concat("with ", what, ": ", fault));
    return nullptr;
  }

  [[noreturn]] void refuse(const char* advice) const {
    throw ValueError(concat("deep_copy: no copy of ", original_.name(),
                            " would be like the original: ", join(faults_, "; "), ". ", advice));
  }

 private:
  /// What of the original a member of the copy still refers to, in words.
  std::string kept(const Structure& after) const {
    std::string name = tensors_.newly_held();
    for (size_t i = 0; name.empty() && i < after.modules.size(); ++i)
      if (after.owners[i] > before_.owners[i]) name = after.names[i];
    return name.empty() ? "" : concat("it keeps a handle to the original's ", name);
  }

  torch::nn::Module& original_;
  Structure before_;
  TensorCopies tensors_;
  std::vector<std::string> faults_;
};

/// As clone(), but with the names in a Sequential, which LibTorch's loses, and with what is in
/// containers of parameters, for which LibTorch's throws.
ModulePointer clone(const torch::nn::Module& module) {
  if (is_parameter_container(module)) {
    if (dynamic_cast<const torch::nn::ParameterListImpl*>(&module) != nullptr)
      return std::make_shared<torch::nn::ParameterListImpl>();
    return std::make_shared<torch::nn::ParameterDictImpl>();
  }
  if (dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr) {
    auto copy = std::make_shared<torch::nn::ModuleListImpl>();
    for (const auto& child : module.named_children()) copy->push_back(clone(*child.value()));
    return copy;
  }
  if (dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr) {
    torch::OrderedDict<std::string, ModulePointer> children;
    for (const auto& child : module.named_children())
      children.insert(child.key(), clone(*child.value()));
    return std::make_shared<torch::nn::ModuleDictImpl>(children);
  }
  const auto* sequential = dynamic_cast<const torch::nn::SequentialImpl*>(&module);
  if (sequential == nullptr) return module.clone();
  auto copy = std::make_shared<torch::nn::SequentialImpl>();
  auto part = sequential->begin();
  for (const auto& child : sequential->named_children())
    copy->push_back(child.key(), (part++)->clone());
  return copy;
}

}  // namespace

ModulePointer deep_copy(const torch::nn::Module& original, const Build& rebuild) {
  Copier copier(original);
  if (auto copy = copier.attempt(rebuild, "reset()")) return copy;
  if (auto copy = copier.attempt([&] { return clone(original); }, "clone()")) return copy;
  copier.refuse("Give a factory that makes one: deep_copy(module, factory).");
}

ModulePointer deep_copy_into(const torch::nn::Module& original, const Build& factory) {
  Copier copier(original);
  const auto present = [&] {
    auto copy = factory();
    if (!copy) throw ValueError("deep_copy: the factory gave nothing, expected a module");
    return copy;
  };
  if (auto copy = copier.attempt(present, "the factory")) return copy;
  copier.refuse("Let the factory make a module as the original was made.");
}

void check_present(bool present) {
  if (!present) throw ValueError("deep_copy: got a null pointer, expected a module");
}

void forget_registered(torch::nn::Module& module) {
  torch::nn::Cloneable<Build>::forget_registered(module);
}

}  // namespace bellows::nn::detail
