#include <algorithm>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/formats/pickle.h"

namespace bellows::formats::pickle {
namespace {

constexpr size_t kWindow = 64 << 10;

template <class T>
Value place(std::deque<T>& all, T item, Tag tag) {
  Value value;
  value.tag = tag;
  value.index = static_cast<uint32_t>(all.size());
  all.push_back(std::move(item));
  return value;
}

}  // namespace

void Heap::charge(uint64_t bytes) {
  if (bytes > limit_ - charged_) {
    throw ValueError(
        concat(path_.string(), ": its objects need more than ", limit_,
               " bytes of memory, expected no more from a file of its size; not one of weights"));
  }
  charged_ += bytes;
}

Value Heap::add_text(Tag tag, std::string text) {
  charge(sizeof(std::string) + text.size() + 1);
  return place(texts_, std::move(text), tag);
}

Value Heap::add_items(Tag tag, std::vector<Value> items) {
  charge(sizeof(items) + items.size() * sizeof(Value));
  return place(items_, std::move(items), tag);
}

Value Heap::add(Storage storage) {
  charge(sizeof(Storage) + storage.key.size());
  return place(storages_, std::move(storage), Tag::storage);
}

Value Heap::add(Tensor tensor) {
  charge(sizeof(Tensor) + 2 * tensor.sizes.size() * sizeof(int64_t));
  return place(tensors_, std::move(tensor), Tag::tensor);
}

Value Heap::add(Object object) {
  charge(sizeof(Object) + object.name.size());
  return place(objects_, std::move(object), Tag::object);
}

Cursor::Cursor(const InputBytes& file, uint64_t begin, uint64_t end)
    : file_(file), position_(begin), end_(end) {}

uint8_t Cursor::byte() {
  if (position_ - window_begin_ >= window_.size()) {
    if (position_ == end_) fail("it ends in the middle; the file was cut");
    window_begin_ = position_;
    window_ = file_.text(position_, std::min<uint64_t>(kWindow, end_ - position_));
  }
  return static_cast<uint8_t>(window_[position_++ - window_begin_]);
}

std::string Cursor::take(uint64_t count) {
  if (count > remaining()) {
    fail(concat("a text of ", count, " bytes does not fit into the ", remaining(), " that follow"));
  }
  std::string text;
  if (count < kWindow) {
    text.reserve(count);
    while (text.size() < count) text.push_back(static_cast<char>(byte()));
    return text;
  }
  text = file_.text(position_, count);
  position_ += count;
  return text;
}

std::string Cursor::line() {
  std::string text;
  for (uint8_t c = byte(); c != '\n'; c = byte()) text.push_back(static_cast<char>(c));
  return text;
}

void Cursor::fail(const std::string& what) const {
  throw CorruptFileError(file_.path(), concat("pickle at byte ", position_, ": ", what));
}

void Cursor::refuse(const std::string& what) const {
  throw ValueError(file_.path().string() + ": " + what);
}

}  // namespace bellows::formats::pickle
