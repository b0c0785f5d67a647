#include "bellows/nn/deep_copy.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include <torch/nn/modules/container/sequential.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/nn/copy_tensors.h"

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
  }

  std::vector<std::string> names;
  std::vector<size_t> same_as;  // by module: the place where it was first
  std::vector<torch::nn::Module*> modules;
  std::string printed;  // with the options of LibTorch's own layers
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
    if (tensors_.restore() || Structure(original_).names != before_.names) {
      throw ValueError(concat("deep_copy: ", what, " of ", original_.name(),
                              " changes the original, expected it to make members anew. Give a "
                              "factory: deep_copy(module, factory)."));
    }
    if (copy) {
      const Structure structure(*copy);
      fault = misfit(before_, structure);
      if (fault.empty()) fault = tensors_.misfit(own_tensors(*copy));
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
  torch::nn::Module& original_;
  Structure before_;
  TensorCopies tensors_;
  std::vector<std::string> faults_;
};

/// LibTorch's clone() of a Sequential loses the names of its modules.
ModulePointer clone(const torch::nn::Module& module) {
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
