// A pickle machine that builds tensors' descriptions and containers, and nothing else: no name in a
// file leads to code. Protocols 0 to 5. Needs no LibTorch. Sources: Python's pickletools (opcodes),
// torch/_utils.py (how tensors are rebuilt), torch/csrc/jit/serialization/pickler.cpp.
//
// What a file wants to be of any other class becomes an `object` that only carries the class's name
// and the state it came with; whoever needs it says so by that name.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/formats/input_bytes.h"
#include "bellows/formats/torch_types.h"

namespace bellows::formats::pickle {

enum class Tag : uint8_t {
  none,
  boolean,
  integer,
  real,
  big_integer,  // text: little-endian two's complement of more than 8 bytes
  text,         // as UTF-8
  bytes,
  dtype,  // a TypeIndex
  complex,
  list,
  tuple,
  dict,  // keys and values by turns
  set,
  tensor,
  storage,
  name,    // text: "module.name" of a class or function
  object,  // of a class that this machine does not know
};

/// Small; what does not fit is in the heap, at `index`.
struct Value {
  Tag tag = Tag::none;
  bool ordered = false;  // dict: a collections.OrderedDict
  union {
    bool boolean;
    int64_t integer = 0;
    double real;
    TypeIndex type;
    uint32_t index;
  };
};

/// As a tensor's persistent id names it. Several may stand for one storage: same key, same bytes.
struct Storage {
  std::string key;
  bool typed = false;
  TypeIndex type = kUint8Type;
  int64_t elements = 0;  // of `type`; bytes where it has none
};

struct Tensor {
  uint32_t storage = 0;
  TypeIndex type = 0;
  int64_t offset = 0;  // in elements
  std::vector<int64_t> sizes, strides;
  bool requires_grad = false;
  bool conjugate = false;
  bool negative = false;
};

struct Object {
  std::string name;  // "module.Class"
  Value state;
};

/// Everything that is not a number. `limit` bounds the memory of all of it together, in bytes;
/// `path` is for messages.
class Heap {
 public:
  Heap(std::filesystem::path path, uint64_t limit) : path_(std::move(path)), limit_(limit) {}

  Value add_text(Tag tag, std::string text);
  Value add_items(Tag tag, std::vector<Value> items);
  Value add(Storage storage);
  Value add(Tensor tensor);
  Value add(Object object);

  const std::string& text(Value value) const { return texts_[value.index]; }
  std::vector<Value>& items(Value value) { return items_[value.index]; }
  const std::vector<Value>& items(Value value) const { return items_[value.index]; }
  const Storage& storage(Value value) const { return storages_[value.index]; }
  Tensor& tensor(Value value) { return tensors_[value.index]; }
  const Tensor& tensor(Value value) const { return tensors_[value.index]; }
  Object& object(Value value) { return objects_[value.index]; }
  const Object& object(Value value) const { return objects_[value.index]; }

  const std::deque<Storage>& storages() const { return storages_; }
  const std::deque<Tensor>& tensors() const { return tensors_; }

  /// Counts memory that is about to be taken. Throws ValueError past the limit.
  void charge(uint64_t bytes);

 private:
  std::deque<std::string> texts_;
  std::deque<std::vector<Value>> items_;
  std::deque<Storage> storages_;
  std::deque<Tensor> tensors_;
  std::deque<Object> objects_;
  std::filesystem::path path_;
  uint64_t limit_;
  uint64_t charged_ = 0;
};

/// Reads a stretch of a file from front to back.
class Cursor {
 public:
  Cursor(const InputBytes& file, uint64_t begin, uint64_t end);
  uint64_t position() const { return position_; }
  uint64_t remaining() const { return end_ - position_; }

  uint8_t byte();
  /// `count` bytes, which must be there before memory is taken.
  std::string take(uint64_t count);
  /// Up to a line's end, which is left out.
  std::string line();
  /// A little-endian number.
  template <class T>
  T number() {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= uint64_t{byte()} << (8 * i);
    return static_cast<T>(value);
  }
  /// Throws CorruptFileError that names the place.
  [[noreturn]] void fail(const std::string& what) const;
  /// Throws ValueError: the file is whole, but not for this reader.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  const InputBytes& file_;
  uint64_t position_, end_;
  std::string window_;
  uint64_t window_begin_ = 0;
};

/// Runs one pickle to its end and gives what it built. Throws CorruptFileError, ValueError.
Value load(Cursor& in, Heap& heap);

/// What calling the class or function `name` with `arguments` gives. Unknown names give objects.
Value call(Cursor& in, Heap& heap, const std::string& name, const std::vector<Value>& arguments);
/// What a persistent id stands for: a storage.
Value persistent(Cursor& in, Heap& heap, Value id);
/// `state` given to a value after it was made.
void build(Cursor& in, Heap& heap, Value& value, Value state);
/// What a class or function stands for when it is named: a type, or the name itself.
Value resolve(Heap& heap, std::string module, const std::string& name);

}  // namespace bellows::formats::pickle
