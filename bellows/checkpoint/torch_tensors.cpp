#include "bellows/checkpoint/torch_tensors.h"

#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>

#include "bellows/checkpoint/torch_scalar_types.h"
#include "bellows/core/error.h"
#include "bellows/core/printable.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;
using formats::FileKind;
using formats::pickle::Tag;
using formats::pickle::Value;

bool is_zip(FileKind kind) {
  return kind != FileKind::torch_save_legacy;
}

// By which a part can be selected; empty for other keys.
std::string plain_key(const formats::pickle::Heap& heap, Value key) {
  if (key.tag == Tag::text) return heap.text(key);
  if (key.tag == Tag::integer) return std::to_string(key.integer);
  return "";
}

}  // namespace

std::string_view torch_type_name(at::ScalarType type) {
  for (size_t i = 0; i < kScalarTypes.size(); ++i) {
    if (kScalarTypes[i] == type) return formats::kTorchTypes[i].dtype;
  }
  return at::toString(type);
}

TorchTensors::TorchTensors(const fs::path& path, FileKind kind)
    : file_(path),
      directory_(is_zip(kind) ? formats::read_zip_directory(file_) : formats::ZipDirectory()),
      contents_(read_contents(kind)),
      script_(kind == FileKind::torchscript || kind == FileKind::libtorch_archive) {}

formats::TorchContents TorchTensors::read_contents(FileKind kind) const {
  if (!is_zip(kind)) return formats::read_torch_legacy(file_);
  const auto prefix = formats::torch_archive_prefix(directory_);
  if (!prefix) throw CorruptFileError(file_.path(), "zip archive: it has no entry data.pkl");
  const std::string pickle = *prefix + "data.pkl";
  const formats::ZipEntry& entry = directory_.find(pickle)->second;
  if (has_checksums() && !entry.compressed) {
    const std::string bytes = file_.text(entry.offset, entry.bytes);
    const uint32_t crc = formats::crc32_of(std::as_bytes(std::span(bytes)));
    if (crc != entry.crc32) {
      throw CorruptFileError(file_.path(), formats::crc32_fault(pickle, crc, entry.crc32));
    }
  }
  return formats::read_torch_zip(file_, directory_, *prefix);
}

bool TorchTensors::has_checksums() const {
  return std::ranges::any_of(directory_, [](const auto& entry) { return entry.second.crc32 != 0; });
}

Value TorchTensors::select(std::string_view keys) const {
  const auto& heap = contents_.heap;
  Value value = contents_.root;
  while (!keys.empty()) {
    const Value whole = value;
    if (value.tag == Tag::object) value = heap.object(value).state;
    std::vector<std::string> names;
    bool found = false;
    if (value.tag == Tag::dict) {
      const std::vector<Value>& items = heap.items(value);
      for (size_t i = 0; i + 1 < items.size() && !found; i += 2) {
        const std::string name = plain_key(heap, items[i]);
        if (!name.empty()) names.push_back(name);
        const bool last = keys == name;
        found = !name.empty() && (last || keys.starts_with(name + "."));
        if (!found) continue;
        value = items[i + 1];
        keys.remove_prefix(last ? keys.size() : name.size() + 1);
      }
    }
    if (!found) {
      names.resize(std::min<size_t>(names.size(), 20));
      throw ValueError(concat(file_.path().string(), ": has no part '", printable(keys), "'",
                              whole.tag == Tag::dict ? ", only: " + printable(join(names)) : ""));
    }
  }
  return value;
}

at::Storage TorchTensors::storage(const formats::pickle::Storage& description) {
  const auto known = alive_.find(description.key);
  if (known != alive_.end()) {
    if (auto alive = known->second.lock()) return at::Storage(std::move(alive));
    alive_.erase(known);
  }
  const formats::StoredStorage& stored = contents_.storages.find(description.key)->second;
  const at::Tensor bytes =
      at::empty({static_cast<int64_t>(stored.bytes)}, at::TensorOptions(at::kByte));
  if (stored.bytes > 0) {
    file_.read(stored.offset, {static_cast<std::byte*>(bytes.data_ptr()), stored.bytes});
  }
  if (stored.crc32 && has_checksums()) {
    const uint32_t crc =
        formats::crc32_of({static_cast<const std::byte*>(bytes.const_data_ptr()), stored.bytes});
    if (crc != *stored.crc32) {
      throw CorruptFileError(file_.path(),
                             formats::crc32_fault("data/" + description.key, crc, *stored.crc32));
    }
  }
  at::Storage storage = bytes.storage();
  alive_.emplace(description.key, storage.getWeakStorageImpl());
  return storage;
}

at::Tensor TorchTensors::tensor(Value value) {
  const formats::pickle::Tensor& own = contents_.heap.tensor(value);
  const at::ScalarType type = kScalarTypes[own.type];
  const bool complex = at::isComplexType(type);
  if ((own.requires_grad && !complex && !at::isFloatingType(type)) || (own.conjugate && !complex)) {
    throw CorruptFileError(file_.path(),
                           concat("a tensor of type ", formats::kTorchTypes[own.type].dtype,
                                  " has a mark that its type cannot have"));
  }
  at::Tensor tensor = at::empty({0}, at::TensorOptions(type));
  tensor.set_(storage(contents_.heap.storages()[own.storage]), own.offset, own.sizes, own.strides);
  if (own.conjugate) tensor = at::_conj(tensor);
  if (own.negative) tensor = at::_neg_view(tensor);
  if (own.requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

void TorchTensors::check_depth(int depth) const {
  if (depth < kDeepestContainers) return;
  throw ValueError(concat(file_.path().string(), ": its containers are nested deeper than ",
                          kDeepestContainers, ", or hold themselves; expected a state dict"));
}

void TorchTensors::refuse_unknown() {
  if (unknown_.empty()) return;
  constexpr size_t kShown = 20;
  std::vector<std::string> names(unknown_.begin(), unknown_.end());
  unknown_.clear();
  const std::string more =
      names.size() > kShown ? concat(" and ", names.size() - kShown, " more") : "";
  names.resize(std::min(names.size(), kShown));
  throw ValueError(concat(file_.path().string(), ": needs class ", printable(join(names)), more,
                          "; this reader builds tensors and containers only. Select the part that "
                          "has the tensors, or save a state_dict()"));
}

PyValue TorchTensors::convert(Value value) {
  PyValue converted = convert(value, 0);
  refuse_unknown();
  return converted;
}

PyDict TorchTensors::convert_dict(Value value, int depth) {
  const std::vector<Value>& items = contents_.heap.items(value);
  PyDict dict{.items = {}, .ordered = value.ordered};
  std::set<std::string_view> names;
  dict.items.reserve(items.size() / 2);
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i].tag == Tag::text && !names.insert(contents_.heap.text(items[i])).second) {
      throw CorruptFileError(
          file_.path(), "a dictionary has the key '" + contents_.heap.text(items[i]) + "' twice");
    }
    PyValue key = convert(items[i], depth + 1);
    if (key.is<at::Tensor>() || key.is<PyList>() || key.is<PySet>() || key.is<PyDict>()) {
      throw CorruptFileError(file_.path(), concat("a dictionary's key is a ", key.kind()));
    }
    dict.add(std::move(key), convert(items[i + 1], depth + 1));
  }
  return dict;
}

PyValue TorchTensors::convert(Value value, int depth) {
  check_depth(depth);
  auto& heap = contents_.heap;
  heap.charge(2 * sizeof(PyValue));
  const auto all = [&] {
    PyList list;
    list.reserve(heap.items(value).size());
    for (const Value& item : heap.items(value)) list.push_back(convert(item, depth + 1));
    return list;
  };
  const auto text = [&] {
    heap.charge(heap.text(value).size());
    return heap.text(value);
  };
  switch (value.tag) {
    case Tag::none:
      return {};
    case Tag::boolean:
      return value.boolean;
    case Tag::integer:
      return value.integer;
    case Tag::real:
      return value.real;
    case Tag::complex:
      return std::complex<double>(heap.items(value)[0].real, heap.items(value)[1].real);
    case Tag::text:
      return text();
    case Tag::bytes:
      return PyBytes{text()};
    case Tag::dtype:
      return concat("torch.", formats::kTorchTypes[value.type].dtype);
    case Tag::list:
      return all();
    case Tag::tuple:
      return PyTuple{all()};
    case Tag::set:
      return PySet{all()};
    case Tag::dict:
      return convert_dict(value, depth);
    case Tag::tensor:
      return tensor(value);
    case Tag::object:
      unknown_.insert(heap.object(value).name);
      return {};
    case Tag::name:
      unknown_.insert(heap.text(value));
      return {};
    case Tag::storage:
      throw ValueError(file_.path().string() +
                       ": holds a bare storage, expected tensors; save the tensor itself");
    case Tag::big_integer:
      throw ValueError(file_.path().string() + ": holds an integer of more than 64 bits");
  }
  return {};
}

std::string TorchTensors::name_of_key(Value key, int depth) {
  const std::string plain = plain_key(contents_.heap, key);
  if (!plain.empty() || key.tag == Tag::text) return plain;
  if (key.tag == Tag::tensor)
    throw CorruptFileError(file_.path(), "a dictionary's key is a Tensor");
  return key_text(convert(key, depth));
}

void TorchTensors::name_all(Value value, const std::string& path, int depth,
                            std::vector<std::pair<std::string, Value>>& all) {
  check_depth(depth);
  auto& heap = contents_.heap;
  const auto below = [&](const std::string& name) {
    return path.empty() ? name : path + "." + name;
  };
  if (value.tag == Tag::object && script_) value = heap.object(value).state;
  if (value.tag == Tag::object) unknown_.insert(heap.object(value).name);
  if (value.tag == Tag::tensor) {
    heap.charge(path.size() + 64);
    all.emplace_back(path, value);
  } else if (value.tag == Tag::dict) {
    const std::vector<Value>& items = heap.items(value);
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      name_all(items[i + 1], below(name_of_key(items[i], depth + 1)), depth + 1, all);
    }
  } else if (value.tag == Tag::list || value.tag == Tag::tuple) {
    heap.charge(heap.items(value).size());
    for (size_t i = 0; i < heap.items(value).size(); ++i) {
      const Value item = heap.items(value)[i];
      if (item.tag >= Tag::list) name_all(item, below(std::to_string(i)), depth + 1, all);
    }
  }
}

std::vector<std::pair<std::string, Value>> TorchTensors::named(Value value) {
  std::vector<std::pair<std::string, Value>> all;
  name_all(value, "", 0, all);
  refuse_unknown();
  return all;
}

}  // namespace bellows::checkpoint
