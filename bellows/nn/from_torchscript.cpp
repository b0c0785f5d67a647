#include "bellows/nn/from_torchscript.h"

#include <cerrno>
#include <fstream>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/formats/file_kind.h"

namespace bellows::nn {
namespace {

[[noreturn]] void refuse(const std::string& where, std::string_view got,
                         const c10::TypePtr& expected) {
  throw ValueError(concat(where, ": got ", got == "nothing" ? "" : "a ", got, ", expected ",
                          expected->annotation_str(), "."));
}

c10::IValue to_ivalue(const Tree& value, const c10::TypePtr& type, const std::string& where);

c10::IValue to_sequence(const Tree::List& items, const c10::TypePtr& type,
                        const std::string& where) {
  const auto item_name = [&](size_t index) { return concat(where, "[", index, "]"); };
  if (const auto list = type->cast<c10::ListType>()) {
    c10::impl::GenericList out(list->getElementType());
    for (size_t i = 0; i < items.size(); ++i)
      out.push_back(to_ivalue(items[i], list->getElementType(), item_name(i)));
    return out;
  }
  const auto tuple = type->cast<c10::TupleType>();
  if (!tuple || tuple->elements().size() != items.size())
    refuse(where, concat("list of length ", items.size()), type);
  std::vector<c10::IValue> out;
  for (size_t i = 0; i < items.size(); ++i)
    out.push_back(to_ivalue(items[i], tuple->elements()[i], item_name(i)));
  return c10::ivalue::Tuple::create(std::move(out));
}

c10::IValue to_dictionary(const Tree::Dict& items, const c10::TypePtr& type,
                          const std::string& where) {
  const auto dict = type->cast<c10::DictType>();
  if (!dict || dict->getKeyType()->kind() != c10::TypeKind::StringType)
    refuse(where, "dictionary", type);
  c10::impl::GenericDict out(dict->getKeyType(), dict->getValueType());
  for (const auto& [key, item] : items)
    out.insert(key, to_ivalue(item, dict->getValueType(), concat(where, "[\"", key, "\"]")));
  return out;
}

c10::IValue to_ivalue(const Tree& value, const c10::TypePtr& type, const std::string& where) {
  if (const auto optional = type->cast<c10::OptionalType>())
    return value.empty() ? c10::IValue() : to_ivalue(value, optional->getElementType(), where);
  if (value.is_list()) return to_sequence(value.list(), type, where);
  if (value.is_dict()) return to_dictionary(value.dict(), type, where);
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      if (value.is_tensor()) return value.tensor();
      break;
    case c10::TypeKind::FloatType:
      if (value.is_double() || value.is_int()) return value.number();
      break;
    case c10::TypeKind::IntType:
      if (value.is_int()) return value.integer();
      break;
    case c10::TypeKind::BoolType:
      if (value.is_bool()) return value.boolean();
      break;
    case c10::TypeKind::StringType:
      if (value.is_string()) return value.string();
      break;
    case c10::TypeKind::NoneType:
      if (value.empty()) return c10::IValue();
      break;
    default:
      break;
  }
  refuse(where, value.kind(), type);
}

Tree to_tree(const c10::IValue& value);

Tree::Dict to_tree(const c10::impl::GenericDict& items) {
  Tree::Dict out;
  for (const auto& item : items) {
    if (!item.key().isString())
      throw ValueError(concat("The output of forward: got a dictionary with keys of type ",
                              item.key().tagKind(), ", expected text keys."));
    out.emplace(item.key().toStringRef(), to_tree(item.value()));
  }
  return out;
}

Tree to_tree(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor();
  if (value.isNone()) return {};
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isGenericDict()) return to_tree(value.toGenericDict());
  Tree::List out;
  if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) out.push_back(to_tree(item));
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) out.push_back(to_tree(item));
  } else {
    throw ValueError(concat("The output of forward: got a value of type ", value.tagKind(),
                            ", expected tensors, numbers and text, or lists, tuples and "
                            "dictionaries of them."));
  }
  return out;
}

template <class Slots>
NamedTensors collect(const Slots& slots) {
  NamedTensors out;
  for (const auto& slot : slots) out.emplace_back(slot.name, slot.value);
  return out;
}

class ScriptModel final : public Model::Interface {
 public:
  explicit ScriptModel(const torch::jit::Module& module)
      : module_(module), forward_(find_forward(module)) {
    const auto& schema = forward_.function().getSchema();
    for (size_t i = 1; i < schema.arguments().size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      arguments_.push_back(
          {argument.type(), concat("Argument ", i - 1, " (", argument.name(), ") of forward")});
      if (!argument.default_value()) required_ = i;
    }
  }

  Tree forward(const Tree& input) override {
    std::vector<c10::IValue> values;
    if (input.is_list() && !takes_one_list()) {
      check_count(input.list().size());
      for (const Tree& value : input.list()) add(values, value);
    } else {
      check_count(1);
      add(values, input);
    }
    return to_tree(forward_(std::move(values)));
  }
  NamedTensors named_parameters() const override {
    return without_ties(collect(module_.named_parameters()));
  }
  NamedTensors named_buffers() const override {
    return without_ties(collect(module_.named_buffers()));
  }
  Ties ties() const override {
    return ties_of(collect(module_.named_parameters()), collect(module_.named_buffers()));
  }
  void train(bool on) override { module_.train(on); }
  bool is_training() const override { return module_.is_training(); }
  void to(c10::Device device) override {
    move_in_place(named_parameters(), device);
    move_in_place(named_buffers(), device);
  }
  std::shared_ptr<Interface> deep_copy() const override {
    return std::make_shared<ScriptModel>(nn::deep_copy(module_));
  }

 private:
  struct Argument {
    c10::TypePtr type;
    std::string name;
  };

  static torch::jit::Method find_forward(const torch::jit::Module& module) {
    if (auto method = module.find_method("forward")) return *method;
    throw ValueError("from_torchscript: the module has no method forward, expected one.");
  }

  // A list for the only argument of a forward that wants a list is meant whole.
  bool takes_one_list() const {
    return arguments_.size() == 1 && arguments_[0].type->kind() == c10::TypeKind::ListType;
  }

  void check_count(size_t got) const {
    if (got >= required_ && got <= arguments_.size()) return;
    const std::string expected = required_ == arguments_.size()
                                     ? std::to_string(required_)
                                     : concat(required_, " to ", arguments_.size());
    throw ValueError(concat("forward of the TorchScript module: got ", got, " arguments, expected ",
                            expected, "."));
  }

  void add(std::vector<c10::IValue>& values, const Tree& value) const {
    const Argument& argument = arguments_[values.size()];
    values.push_back(to_ivalue(value, argument.type, argument.name));
  }

  torch::jit::Module module_;
  torch::jit::Method forward_;  // looked up once
  std::vector<Argument> arguments_;
  size_t required_ = 0;
};

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

torch::jit::Module deep_copy(const torch::jit::Module& module) {
  const at::NoGradGuard no_grad;  // so that the copies are leaves
  torch::jit::Module copy = module.deepcopy();
  const auto give = [](const auto& from, const auto& to) {
    auto target = to.begin();
    for (const auto& slot : from) {
      if (slot.value.defined()) (*target).value.set_requires_grad(slot.value.requires_grad());
      ++target;
    }
  };
  give(module.named_parameters(), copy.named_parameters());
  give(module.named_buffers(), copy.named_buffers());
  return copy;
}

Model from_torchscript(const torch::jit::Module& module) {
  return Model(std::make_shared<ScriptModel>(module));
}

Model load_torchscript(const std::filesystem::path& path) {
  if (std::ifstream file(path); !file || std::filesystem::is_directory(path))
    throw FileError(path, "open", file ? EISDIR : errno);
  formats::refuse_other_kind(path, formats::FileKind::torchscript, "a TorchScript archive");
  std::string why;
  try {
    return from_torchscript(torch::jit::load(path.string(), c10::Device(c10::kCPU)));
  } catch (const c10::Error& error) {
    why = first_line(error.what_without_backtrace());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // errors in the code it holds
    why = error.what();
  }
  throw CorruptFileError(path, concat("not a TorchScript module that this LibTorch can load: ", why,
                                      ". Expected a file that torch.jit.save wrote (torch.save "
                                      "writes another format)."));
}

}  // namespace bellows::nn
