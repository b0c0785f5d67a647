#include "bellows/formats/torch_contents.h"

#include <algorithm>
#include <charconv>
#include <span>

#include "bellows/core/error.h"
#include "bellows/core/printable.h"
#include "bellows/core/text.h"

namespace bellows::formats {
namespace {

using pickle::Heap;
using pickle::Tag;
using pickle::Value;

constexpr uint64_t kSmallFileMemory = 15 << 20;
// The pickles of 0x1950a86a20f9469cfc6c and of the protocol's number, 1001.
constexpr std::string_view kLegacyMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
                                        15);
constexpr int64_t kLegacyProtocol = 1001;

Heap heap_for(const InputBytes& file) {
  return Heap(file.path(), file.size() + kSmallFileMemory);
}

uint64_t bytes_of(const pickle::Storage& storage) {
  const auto element = static_cast<uint64_t>(storage.typed ? kTorchTypes[storage.type].bytes : 1);
  uint64_t bytes = 0;
  const bool fits =
      !__builtin_mul_overflow(static_cast<uint64_t>(storage.elements), element, &bytes);
  return fits ? bytes : ~uint64_t{0};
}

// The number in a small entry of the archive ("3\n"); nothing where there is no such entry.
std::optional<int64_t> number_in(const InputBytes& file, const ZipDirectory& directory,
                                 const std::string& name) {
  const auto entry = directory.find(name);
  if (entry == directory.end()) return std::nullopt;
  const std::string text = first_bytes(file, entry->second, 20);
  int64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc()) {
    throw CorruptFileError(file.path(), "its entry '" + name + "' is no number");
  }
  return number;
}

void check_version(const InputBytes& file, const ZipDirectory& directory, const std::string& name,
                   int64_t newest) {
  const auto version = number_in(file, directory, name);
  if (!version || *version <= newest) return;
  throw ValueError(concat(file.path().string(), ": made by a newer PyTorch: its '", name, "' is ",
                          *version, ", this reads up to ", newest,
                          "; save it with an older PyTorch, or use a newer Bellows"));
}

[[noreturn]] void refuse_big_endian(const InputBytes& file) {
  throw ValueError(file.path().string() +
                   ": was written by a big-endian machine, expected little-endian bytes; load and "
                   "save it with PyTorch here");
}

// Each name of a storage must agree with the bytes that are there.
void check_storages(const InputBytes& file, const TorchContents& contents) {
  for (const pickle::Storage& storage : contents.heap.storages()) {
    const auto stored = contents.storages.find(storage.key);
    if (stored == contents.storages.end()) {
      throw CorruptFileError(file.path(), "storage '" + printable(storage.key) + "' is not there");
    }
    if (stored->second.bytes != bytes_of(storage)) {
      throw CorruptFileError(
          file.path(), concat("storage '", printable(storage.key), "' has ", stored->second.bytes,
                              " bytes, expected ", storage.elements, " elements of ",
                              storage.typed ? kTorchTypes[storage.type].bytes : 1));
    }
  }
}

// Why a tensor does not lie within `bytes`; empty where it does.
std::string fault_of(const pickle::Tensor& tensor, uint64_t bytes) {
  if (tensor.sizes.size() != tensor.strides.size())
    return "has another number of strides than sizes";
  if (tensor.sizes.size() > 64) return concat("has ", tensor.sizes.size(), " dimensions");
  if (tensor.offset < 0) return concat("has offset ", tensor.offset);
  int64_t end = tensor.offset, count = 1;
  bool overflow = false, empty = false;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    const int64_t size = tensor.sizes[i];
    if (size < 0 || tensor.strides[i] < 0) return "has a negative size or stride";
    empty = empty || size == 0;
    int64_t reach = 0;
    overflow = overflow || __builtin_mul_overflow(count, std::max<int64_t>(size, 1), &count);
    overflow = overflow ||
               __builtin_mul_overflow(std::max<int64_t>(size - 1, 0), tensor.strides[i], &reach);
    overflow = overflow || __builtin_add_overflow(end, reach, &end);
  }
  const int64_t element = kTorchTypes[tensor.type].bytes;
  int64_t end_bytes = 0;
  overflow = overflow || __builtin_mul_overflow(count, element, &count);
  overflow = overflow || __builtin_add_overflow(end, int64_t{1}, &end);
  overflow = overflow || __builtin_mul_overflow(end, element, &end_bytes);
  if (overflow) return "has sizes or strides of more than 64 bits";
  if (!empty && static_cast<uint64_t>(end_bytes) > bytes) {
    return concat("reaches ", end_bytes, " bytes into a storage of ", bytes);
  }
  return "";
}

void check_tensors(const InputBytes& file, const TorchContents& contents) {
  for (const pickle::Tensor& tensor : contents.heap.tensors()) {
    const pickle::Storage& storage = contents.heap.storages()[tensor.storage];
    const uint64_t bytes = contents.storages.find(storage.key)->second.bytes;
    const std::string fault = fault_of(tensor, bytes);
    if (fault.empty()) continue;
    throw CorruptFileError(file.path(),
                           "a tensor in storage '" + printable(storage.key) + "' " + fault);
  }
}

// Whether a legacy file's description of its system says big-endian.
bool says_big_endian(const Heap& heap, Value system) {
  if (system.tag != Tag::dict) return false;
  const std::vector<Value>& items = heap.items(system);
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i].tag == Tag::text && heap.text(items[i]) == "little_endian") {
      return items[i + 1].tag == Tag::boolean && !items[i + 1].boolean;
    }
  }
  return false;
}

// The storages' bytes, one behind the other in the order of `keys`, each after its length.
void locate_legacy(const InputBytes& file, pickle::Cursor& in, Value keys,
                   TorchContents& contents) {
  if (keys.tag != Tag::list) in.fail("the list of storages is none");
  std::map<std::string_view, const pickle::Storage*> known;
  for (const pickle::Storage& storage : contents.heap.storages())
    known.emplace(storage.key, &storage);
  uint64_t position = in.position();
  for (const Value& key : contents.heap.items(keys)) {
    if (key.tag != Tag::text || !known.contains(contents.heap.text(key))) {
      in.fail("the list of storages names one that no tensor has");
    }
    const pickle::Storage& storage = *known.at(contents.heap.text(key));
    int64_t elements = 0;
    file.read(position, std::as_writable_bytes(std::span(&elements, 1)));
    position += sizeof(elements);
    const uint64_t bytes = bytes_of(storage);
    if (elements != storage.elements || bytes > file.size() - position) {
      throw CorruptFileError(file.path(),
                             concat("storage '", printable(storage.key), "' has ", elements,
                                    " elements, expected ", storage.elements, " within ",
                                    file.size() - position, " bytes; the file was cut or damaged"));
    }
    contents.storages[storage.key] = {.offset = position, .bytes = bytes, .crc32 = {}};
    position += bytes;
  }
}

}  // namespace

bool begins_as_legacy_torch(std::string_view bytes) {
  return bytes.starts_with(kLegacyMagic);
}

std::optional<std::string> torch_archive_prefix(const ZipDirectory& directory) {
  for (const auto& [name, entry] : directory) {
    if (name == "data.pkl") return "";
    if (name.ends_with("/data.pkl") && name.find('/') == name.size() - 9) {
      return name.substr(0, name.size() - 8);
    }
  }
  return std::nullopt;
}

TorchContents read_torch_zip(const InputBytes& file, const ZipDirectory& directory,
                             const std::string& prefix) {
  check_version(file, directory, prefix + "version", kNewestTorchArchive);
  check_version(file, directory, prefix + ".format_version", 1);
  if (const auto order = directory.find(prefix + "byteorder"); order != directory.end()) {
    if (first_bytes(file, order->second, 8) == "big") {
      refuse_big_endian(file);
    }
  }
  TorchContents contents{.heap = heap_for(file), .root = {}, .storages = {}};
  const ZipEntry& entry =
      stored_entry(file, prefix + "data.pkl", directory.find(prefix + "data.pkl")->second);
  pickle::Cursor in(file, entry.offset, entry.offset + entry.bytes);
  contents.root = pickle::load(in, contents.heap);
  const std::string folder = prefix + "data/";
  for (auto found = directory.lower_bound(folder);
       found != directory.end() && found->first.starts_with(folder); ++found) {
    static_cast<void>(stored_entry(file, found->first, found->second));
    contents.storages[found->first.substr(folder.size())] = {
        .offset = found->second.offset, .bytes = found->second.bytes, .crc32 = found->second.crc32};
  }
  check_storages(file, contents);
  check_tensors(file, contents);
  return contents;
}

TorchContents read_torch_legacy(const InputBytes& file) {
  TorchContents contents{.heap = heap_for(file), .root = {}, .storages = {}};
  pickle::Cursor in(file, 0, file.size());
  static_cast<void>(pickle::load(in, contents.heap));  // the magic number
  const Value protocol = pickle::load(in, contents.heap);
  if (protocol.tag != Tag::integer || protocol.integer != kLegacyProtocol) {
    in.refuse(concat("its legacy protocol is another, this reads ", kLegacyProtocol));
  }
  if (says_big_endian(contents.heap, pickle::load(in, contents.heap))) refuse_big_endian(file);
  contents.root = pickle::load(in, contents.heap);
  const Value keys = pickle::load(in, contents.heap);
  locate_legacy(file, in, keys, contents);
  check_storages(file, contents);
  check_tensors(file, contents);
  return contents;
}

}  // namespace bellows::formats
