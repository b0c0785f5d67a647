#include "bellows/checkpoint/torch_pickle_writer.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <set>

#include "bellows/checkpoint/torch_scalar_types.h"
#include "bellows/checkpoint/torch_tensors.h"
#include "bellows/checkpoint/tree_json.h"
#include "bellows/core/error.h"
#include "bellows/core/printable.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw ValueError("write_torch_file: '" + printable(path) + "' " + printable(what));
}

std::string below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

// Place in kTorchTypes.
size_t type_index(const at::Tensor& tensor, const std::string& path) {
  const auto* const found = std::ranges::find(kScalarTypes, tensor.scalar_type());
  if (found == kScalarTypes.end()) {
    refuse(path, concat("has type ", at::toString(tensor.scalar_type()),
                        ", which this writer lacks; convert it first"));
  }
  return static_cast<size_t>(found - kScalarTypes.begin());
}

void check_tensor(const at::Tensor& tensor, const std::string& path) {
  if (!tensor.defined()) refuse(path, "is an undefined tensor; leave it out");
  if (tensor.layout() != at::kStrided || tensor.is_nested() || tensor.is_quantized()) {
    refuse(path, "is sparse, nested or quantized, expected a dense tensor");
  }
  if (tensor.is_meta()) refuse(path, "is on the meta device and has no values");
}

}  // namespace

TorchPickleWriter::TorchPickleWriter(const PyValue& value) {
  raw("\x80\x02");
  write(value, "");
  raw(".");
}

void TorchPickleWriter::little_endian(uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
}

void TorchPickleWriter::write_number(int64_t value) {
  if (value >= 0 && value < 256) {
    raw("K");
    little_endian(static_cast<uint64_t>(value), 1);
  } else if (value >= 0 && value < 65536) {
    raw("M");
    little_endian(static_cast<uint64_t>(value), 2);
  } else if (value >= std::numeric_limits<int32_t>::min() &&
             value <= std::numeric_limits<int32_t>::max()) {
    raw("J");
    little_endian(static_cast<uint64_t>(value), 4);
  } else {
    raw("\x8a\x08");
    little_endian(static_cast<uint64_t>(value), 8);
  }
}

void TorchPickleWriter::write_real(double value) {
  raw("G");
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) out_.push_back(static_cast<char>(bits >> shift));
}

void TorchPickleWriter::write_text(const std::string& text, const std::string& path) {
  if (!is_utf8(text)) refuse(path, "is text that is not UTF-8; pass it as bytes");
  if (text.size() > std::numeric_limits<uint32_t>::max()) refuse(path, "is text of over 4 GiB");
  raw("X");
  little_endian(text.size(), 4);
  raw(text);
}

// _codecs.encode(text, "latin1"), as protocol 2 does.
void TorchPickleWriter::write_bytes(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80) {
      text.push_back(c);
    } else {
      text.push_back(static_cast<char>(0xC0 | byte >> 6));
      text.push_back(static_cast<char>(0x80 | (byte & 0x3F)));
    }
  }
  write_name("_codecs", "encode");
  raw("(");
  write_text(text, "bytes");
  write_text("latin1", "bytes");
  raw("tR");
}

void TorchPickleWriter::write_name(const char* module, std::string_view name) {
  out_ += concat("c", module, "\n", name, "\n");
}

void TorchPickleWriter::write_items(const std::vector<PyValue>& items, const std::string& path) {
  size_t number = 0;
  for (const PyValue& item : items) write(item, below(path, std::to_string(number++)));
}

void TorchPickleWriter::write_dict(const PyDict& dict, const std::string& path) {
  if (dict.ordered) {
    write_name("collections", "OrderedDict");
    raw(")R");
  } else {
    raw("}");
  }
  if (dict.items.empty()) return;
  raw("(");
  std::set<std::string> keys;  // as they are written
  for (const auto& [key, value] : dict.items) {
    if (key.is<PyList>() || key.is<PyDict>() || key.is<PySet>() || key.is<at::Tensor>()) {
      refuse(path, concat("has a key that is a ", key.kind()));
    }
    const std::string name = key_text(key);
    const size_t begin = out_.size();
    write(key, below(path, name));
    if (!keys.insert(out_.substr(begin)).second) refuse(path, "has the key '" + name + "' twice");
    write(value, below(path, name));
  }
  raw("u");
}

void TorchPickleWriter::write_sizes(at::IntArrayRef sizes) {
  raw("(");
  for (const int64_t size : sizes) write_number(size);
  raw("t");
}

void TorchPickleWriter::write_tensor(const at::Tensor& given, const std::string& path) {
  check_tensor(given, path);
  const size_t index = type_index(given, path);
  const formats::TorchType& type = formats::kTorchTypes[index];
  const bool marked = given.is_conj() || given.is_neg();
  const at::Tensor tensor = marked ? given.detach().resolve_conj().resolve_neg() : given.detach();
  const at::Storage& storage = tensor.storage();
  const auto [known, is_new] =
      known_.emplace(storage.unsafeGetStorageImpl(), Known{storages_.size(), given.scalar_type()});
  if (is_new) storages_.push_back(storage);
  // Python gives a storage the type it met first: another one is written beside it.
  const bool typed = !type.storage.empty() && known->second.type == given.scalar_type();

  // _rebuild_tensor_v3 of PyTorch 2.14 fails where it is to require a gradient: a parameter does
  // not.
  const bool parameter = !typed && given.requires_grad();
  if (parameter) raw("ctorch._utils\n_rebuild_parameter\n(");
  write_name("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  raw("((");
  write_text("storage", path);
  write_name(typed ? "torch" : "torch.storage", typed ? type.storage : "UntypedStorage");
  write_text(std::to_string(known->second.number), path);
  write_text("cpu", path);
  write_number(static_cast<int64_t>(storage.nbytes()) / (typed ? type.bytes : 1));
  raw("tQ");
  write_number(tensor.storage_offset());
  write_sizes(tensor.sizes());
  write_sizes(tensor.strides());
  raw(given.requires_grad() && !parameter ? "\x88" : "\x89");
  write_name("collections", "OrderedDict");
  raw(")R");
  if (!typed) write_name("torch", type.dtype);
  raw("tR");
  if (parameter)
    raw("\x88"
        "ccollections\nOrderedDict\n)RtR");
}

void TorchPickleWriter::write(const PyValue& value, const std::string& path) {
  if (depth_ == kDeepestContainers) {
    refuse(path.substr(0, 40), concat("is nested deeper than ", kDeepestContainers,
                                      " containers, which no reader here takes"));
  }
  ++depth_;
  if (value.is_none()) {
    raw("N");
  } else if (value.is<bool>()) {
    raw(value.boolean() ? "\x88" : "\x89");
  } else if (value.is<int64_t>()) {
    write_number(value.integer());
  } else if (value.is<double>()) {
    write_real(value.number());
  } else if (const auto* number = std::get_if<std::complex<double>>(&value.variant())) {
    write_name("__builtin__", "complex");
    write_real(number->real());
    write_real(number->imag());
    raw("\x86R");
  } else if (value.is<std::string>()) {
    write_text(value.string(), path);
  } else if (const auto* bytes = std::get_if<PyBytes>(&value.variant())) {
    write_bytes(bytes->bytes);
  } else if (value.is<at::Tensor>()) {
    write_tensor(value.tensor(), path);
  } else if (value.is<PyList>()) {
    raw("](");
    write_items(value.items(), path);
    raw("e");
  } else if (value.is<PyTuple>()) {
    raw("(");
    write_items(value.items(), path);
    raw("t");
  } else if (const auto* set = std::get_if<PySet>(&value.variant())) {
    write_name("__builtin__", "set");
    raw("](");
    write_items(set->items, path);
    raw("e\x85R");
  } else {
    write_dict(value.dict(), path);
  }
  --depth_;
}

}  // namespace bellows::checkpoint
