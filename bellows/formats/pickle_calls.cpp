// The classes and functions that a pickle may name, and what they give. Nothing else exists here.
#include <algorithm>
#include <array>

#include "bellows/core/text.h"
#include "bellows/formats/pickle.h"

namespace bellows::formats::pickle {
namespace {

using Arguments = std::vector<Value>;

// A call being answered.
struct Call {
  Cursor& in;
  Heap& heap;
  const std::string& name;
  const Arguments& arguments;

  [[noreturn]] void fail(const std::string& what) const { in.fail(name + ": " + what); }
  Value at(size_t i, Tag tag) const {
    if (i >= arguments.size() || arguments[i].tag != tag) {
      fail(concat("argument ", i, " is missing or of another kind"));
    }
    return arguments[i];
  }
  bool flag(size_t i) const { return at(i, Tag::boolean).boolean; }
};

std::vector<int64_t> integers(const Call& call, size_t i) {
  if (i >= call.arguments.size()) call.fail("sizes are missing");
  const Value value = call.arguments[i];
  if (value.tag != Tag::tuple && value.tag != Tag::list) call.fail("sizes are no tuple");
  std::vector<int64_t> numbers;
  for (const Value& item : call.heap.items(value)) {
    if (item.tag != Tag::integer) call.fail("a size is no integer");
    numbers.push_back(item.integer);
  }
  return numbers;
}

// Conjugation and negation that are only marked, not done.
void read_marks(const Call& call, size_t i, Tensor& tensor) {
  if (i >= call.arguments.size() || call.arguments[i].tag != Tag::dict) return;
  const std::vector<Value>& items = call.heap.items(call.arguments[i]);
  for (size_t k = 0; k + 1 < std::min<size_t>(items.size(), 8); k += 2) {
    if (items[k].tag != Tag::text || items[k + 1].tag != Tag::boolean) continue;
    if (call.heap.text(items[k]) == "conj") tensor.conjugate = items[k + 1].boolean;
    if (call.heap.text(items[k]) == "neg") tensor.negative = items[k + 1].boolean;
  }
}

// (storage, offset, sizes, strides[, requires_grad, hooks[, metadata or type[, metadata]]])
Value rebuild_tensor(const Call& call) {
  const Storage& storage = call.heap.storage(call.at(0, Tag::storage));
  Tensor tensor;
  tensor.storage = call.arguments[0].index;
  tensor.type = storage.type;
  tensor.offset = call.at(1, Tag::integer).integer;
  tensor.sizes = integers(call, 2);
  tensor.strides = integers(call, 3);
  if (call.name != "torch._utils._rebuild_tensor") tensor.requires_grad = call.flag(4);
  const bool named_type = call.name == "torch._utils._rebuild_tensor_v3";
  if (named_type) tensor.type = call.at(6, Tag::dtype).type;
  read_marks(call, named_type ? 7 : 6, tensor);
  return call.heap.add(std::move(tensor));
}

// (data, requires_grad, …)
Value rebuild_parameter(const Call& call) {
  Tensor tensor = call.heap.tensor(call.at(0, Tag::tensor));
  tensor.requires_grad = call.arguments.size() < 2 || call.flag(1);
  return call.heap.add(std::move(tensor));
}

// (function, class, arguments, state): a tensor with attributes of its own, which are dropped.
Value rebuild_from_type(const Call& call) {
  const std::string function = call.heap.text(call.at(0, Tag::name));
  const std::string& kind = call.heap.text(call.at(1, Tag::name));
  if (kind != "torch.Tensor" && kind != "torch.nn.parameter.Parameter") {
    return call.heap.add(Object{.name = kind, .state = {}});
  }
  if (function == call.name) call.fail("it calls itself");
  const Arguments& inner = call.heap.items(call.at(2, Tag::tuple));
  return pickle::call(call.in, call.heap, function, inner);
}

Value first(const Call& call) {
  if (call.arguments.empty()) call.fail("its argument is missing");
  return call.arguments[0];
}

Value sequence(const Call& call, Tag tag) {
  if (call.arguments.empty()) return call.heap.add_items(tag, {});
  const Value items = first(call);
  if (items.tag != Tag::list && items.tag != Tag::tuple && items.tag != Tag::set) {
    call.fail("its argument is no sequence");
  }
  return call.heap.add_items(tag, call.heap.items(items));
}
Value list(const Call& call) {
  return sequence(call, Tag::list);
}
Value tuple(const Call& call) {
  return sequence(call, Tag::tuple);
}
Value set(const Call& call) {
  return sequence(call, Tag::set);
}

// OrderedDict(), OrderedDict([(key, value), …]), Counter({…}), defaultdict(class).
Value dictionary(const Call& call) {
  std::vector<Value> items;
  for (const Value& argument : call.arguments) {
    if (argument.tag == Tag::dict) {
      items = call.heap.items(argument);
    } else if (argument.tag == Tag::list) {
      for (const Value& pair : call.heap.items(argument)) {
        const bool whole =
            (pair.tag == Tag::list || pair.tag == Tag::tuple) && call.heap.items(pair).size() == 2;
        if (!whole) call.fail("an item is no pair");
        items.insert(items.end(), call.heap.items(pair).begin(), call.heap.items(pair).end());
      }
    }
  }
  Value made = call.heap.add_items(Tag::dict, std::move(items));
  made.ordered = call.name == "collections.OrderedDict";
  return made;
}

Value complex(const Call& call) {
  std::vector<Value> parts = {call.at(0, Tag::real), call.at(1, Tag::real)};
  return call.heap.add_items(Tag::complex, std::move(parts));
}

// torch.device("cuda", 1): "cuda:1".
Value device(const Call& call) {
  std::string name = call.heap.text(call.at(0, Tag::text));
  if (call.arguments.size() > 1) name += concat(":", call.at(1, Tag::integer).integer);
  return call.heap.add_text(Tag::text, std::move(name));
}

// _codecs.encode(text, "latin1"): how protocol 2 writes bytes.
Value encoded(const Call& call) {
  const std::string text = call.heap.text(call.at(0, Tag::text));
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<uint8_t>(text[i]);
    if (c < 0x80) {
      bytes.push_back(text[i]);
    } else if ((c == 0xC2 || c == 0xC3) && i + 1 < text.size()) {
      bytes.push_back(static_cast<char>((c & 3) << 6 | (static_cast<uint8_t>(text[++i]) & 0x3F)));
    } else {
      call.fail("a character is no byte");
    }
  }
  return call.heap.add_text(Tag::bytes, std::move(bytes));
}

Value byte_array(const Call& call) {
  if (call.arguments.empty()) return call.heap.add_text(Tag::bytes, "");
  if (call.arguments[0].tag == Tag::bytes) return call.arguments[0];
  return encoded(call);
}

// An enumeration's member or another harmless mark that tensors do not need.
Value layout(const Call& call) {
  const std::string text = call.heap.text(call.at(0, Tag::text));
  return call.heap.add_text(Tag::text, text);
}

struct Known {
  std::string_view name;
  Value (*answer)(const Call&);
};
constexpr std::array kKnown = {
    Known{"torch._utils._rebuild_tensor", rebuild_tensor},
    Known{"torch._utils._rebuild_tensor_v2", rebuild_tensor},
    Known{"torch._utils._rebuild_tensor_v3", rebuild_tensor},
    Known{"torch._utils._rebuild_parameter", rebuild_parameter},
    Known{"torch._utils._rebuild_parameter_with_state", rebuild_parameter},
    Known{"torch.nn.parameter.Parameter", rebuild_parameter},
    Known{"torch.nn.parameter.Buffer", rebuild_parameter},
    Known{"torch._tensor._rebuild_from_type_v2", rebuild_from_type},
    Known{"torch._utils._rebuild_device_tensor_from_cpu_tensor", first},
    Known{"torch.Size", tuple},
    Known{"torch.device", device},
    Known{"torch.serialization._get_layout", layout},
    Known{"torch.jit._pickle.build_intlist", list},
    Known{"torch.jit._pickle.build_doublelist", list},
    Known{"torch.jit._pickle.build_boollist", list},
    Known{"torch.jit._pickle.build_tensorlist", list},
    Known{"torch.jit._pickle.restore_type_tag", first},
    Known{"collections.OrderedDict", dictionary},
    Known{"collections.Counter", dictionary},
    Known{"collections.defaultdict", dictionary},
    Known{"builtins.set", set},
    Known{"builtins.frozenset", set},
    Known{"builtins.complex", complex},
    Known{"builtins.bytearray", byte_array},
    Known{"_codecs.encode", encoded},
};

// What copyreg's helpers make is of the class in their first argument.
std::string class_of(const Heap& heap, const std::string& name, const Arguments& arguments) {
  if (name.starts_with("copyreg.") && !arguments.empty() && arguments[0].tag == Tag::name) {
    return heap.text(arguments[0]);
  }
  return name;
}

}  // namespace

Value resolve(Heap& heap, std::string module, const std::string& name) {
  if (module == "__builtin__") module = "builtins";  // Python 2's names, in protocols up to 2
  if (module == "copy_reg") module = "copyreg";
  if (module == "torch") {
    if (const auto type = find_type(name, &TorchType::dtype)) {
      Value value;
      value.tag = Tag::dtype;
      value.type = *type;
      return value;
    }
  }
  return heap.add_text(Tag::name, module + "." + name);
}

Value call(Cursor& in, Heap& heap, const std::string& name, const std::vector<Value>& arguments) {
  const auto known = std::ranges::find(kKnown, name, &Known::name);
  if (known != kKnown.end()) return known->answer({in, heap, name, arguments});
  Value made = heap.add(Object{.name = class_of(heap, name, arguments), .state = {}});
  return made;
}

// ("storage", type, key, location, number of elements[, view]) or, of a file that holds a whole
// module, ("module", class, file, source).
Value persistent(Cursor& in, Heap& heap, Value id) {
  if (id.tag != Tag::tuple) in.fail("a storage's name is no tuple");
  const std::vector<Value> parts = heap.items(id);
  const auto is_text = [&](size_t i) { return i < parts.size() && parts[i].tag == Tag::text; };
  if (is_text(0) && heap.text(parts[0]) == "module" && parts.size() > 1) return parts[1];
  const bool whole = is_text(0) && heap.text(parts[0]) == "storage" && parts.size() >= 5 &&
                     parts[1].tag == Tag::name && is_text(2) && parts[4].tag == Tag::integer;
  if (!whole || parts[4].integer < 0) in.fail("a storage's name is damaged");
  if (parts.size() > 5 && parts[5].tag != Tag::none) {
    in.fail("a storage is a view of another, as PyTorch before 0.4 wrote; save the file again");
  }
  const std::string& name = heap.text(parts[1]);  // torch.FloatStorage, torch.cuda.FloatStorage
  const size_t dot = name.rfind('.');
  const std::string_view kind = std::string_view(name).substr(dot + 1);
  Storage storage{.key = heap.text(parts[2]), .elements = parts[4].integer};
  if (const auto type = find_type(kind, &TorchType::storage)) {
    storage.typed = true;
    storage.type = *type;
  } else if (kind != "UntypedStorage") {
    in.refuse(concat("it needs storages of type ", name,
                     ", expected those of plain numbers; convert such tensors first"));
  }
  return heap.add(std::move(storage));
}

void build(Cursor& in, Heap& heap, Value& value, Value state) {
  switch (value.tag) {
    case Tag::object:
      heap.object(value).state = state;
      return;
    case Tag::dict:    // attributes of an OrderedDict, such as a state dict's _metadata
    case Tag::tensor:  // attributes of a tensor
    case Tag::set:
      return;
    default:
      in.fail("it sets the state of what has none");
  }
}

}  // namespace bellows::formats::pickle
