#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "bellows/checkpoint/safetensors_file.h"
#include "bellows/checkpoint/safetensors_io.h"
#include "bellows/checkpoint/safetensors_types.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/core/thread_pool.h"
#include "bellows/formats/file_kind.h"
#include "bellows/formats/input_bytes.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;
using formats::InputFile;

// The header's text, whose length comes first in the file.
std::string read_header(const InputFile& file) {
  if (file.size() < 8) {
    throw CorruptFileError(
        file.path(),
        concat("got ", file.size(), " bytes, expected at least 8 (the header's length)"));
  }
  std::array<std::byte, 8> prefix;
  file.read(0, prefix);
  const auto length = std::bit_cast<uint64_t>(prefix);
  if (length > kMaxHeaderBytes || length > file.size() - 8) {
    throw CorruptFileError(file.path(),
                           concat("the header's length is ", length, ", expected at most ",
                                  std::min(kMaxHeaderBytes, file.size() - 8),
                                  "; not a safetensors file, or cut short"));
  }
  std::string text(length, '\0');
  file.read(8, std::as_writable_bytes(std::span(text)));
  return text;
}

// A stretch of the file, at most a block, and where it goes.
struct Piece {
  uint64_t offset;
  std::byte* memory;  // null: read and forgotten
  size_t bytes;
  uint64_t hash = 0;
};

// Reads and hashes; what is hashed has just been read and is still near the processor.
void read_piece(const InputFile& file, Piece& piece, std::span<std::byte> memory, bool hash) {
  constexpr size_t kNear = size_t{256} << 10;
  if (!hash) return file.read(piece.offset, memory);
  BlockHash block;
  for (size_t done = 0; done < memory.size(); done += kNear) {
    const auto part = memory.subspan(done, std::min(kNear, memory.size() - done));
    file.read(piece.offset + done, part);
    block.add(part);
  }
  piece.hash = block.value();
}

// Reads and hashes all pieces, by as many threads as LibTorch uses.
void read_pieces(const InputFile& file, std::vector<Piece>& pieces, bool hash) {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  const auto blocks = static_cast<int64_t>(bytes / kBlockBytes);
  const int64_t threads = std::min<int64_t>({at::get_num_threads(), blocks, 8});
  ThreadPool helpers(static_cast<int>(std::max<int64_t>(threads - 1, 0)));
  const auto count = static_cast<int64_t>(pieces.size());
  helpers.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    std::vector<std::byte> scratch;
    for (Piece& piece : std::span(pieces).subspan(begin, end - begin)) {
      if (piece.memory == nullptr) scratch.resize(std::max(scratch.size(), piece.bytes));
      const std::span memory(piece.memory == nullptr ? scratch.data() : piece.memory, piece.bytes);
      read_piece(file, piece, memory, hash);
    }
  });
}

// Cuts what lies at `offset` into blocks.
void add_pieces(uint64_t offset, std::byte* memory, size_t bytes, std::vector<Piece>& pieces) {
  for (size_t done = 0; done < bytes; done += kBlockBytes) {
    pieces.push_back({offset + done, memory == nullptr ? nullptr : memory + done,
                      std::min(kBlockBytes, bytes - done)});
  }
}

}  // namespace

struct SafetensorsFile::State {
  State(const fs::path& path, Checksums wanted) : file(path) {
    formats::refuse_other_kind(path, formats::FileKind::safetensors, "a safetensors file");
    const std::string text = read_header(file);
    data_begin = 8 + text.size();
    header_hash = hash_of(text);
    header = parse_header(path, text, file.size() - data_begin);
    checksums = take_checksums(path, header);
    if (wanted == Checksums::no) checksums.clear();
    for (size_t i = 0; i < header.entries.size(); ++i) by_name[header.entries[i].name] = i;
  }

  // The entries' bytes, each into its memory (null: forgotten), compared with the checksums.
  void read(std::span<const TensorEntry> entries, std::span<std::byte* const> memory) const {
    std::vector<Piece> pieces;
    std::vector<size_t> ends;
    for (size_t i = 0; i < entries.size(); ++i) {
      add_pieces(data_begin + entries[i].begin, memory.empty() ? nullptr : memory[i],
                 entries[i].end - entries[i].begin, pieces);
      ends.push_back(pieces.size());
    }
    read_pieces(file, pieces, !checksums.empty());
    if (checksums.empty()) return;
    size_t begin = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      std::vector<uint64_t> blocks;
      for (; begin < ends[i]; ++begin) blocks.push_back(pieces[begin].hash);
      check(entries[i], checksum_of(entries[i], blocks));
    }
  }

  void check(const TensorEntry& entry, uint64_t got) const {
    const uint64_t expected = checksums[by_name.at(entry.name)];
    if (got == expected) return;
    throw CorruptFileError(file.path(),
                           concat("tensor '", entry.name, "': its checksum is ", hash_text(got),
                                  ", expected ", hash_text(expected),
                                  "; the file was damaged, or its tensors were changed by a "
                                  "program that copied the metadata"));
  }

  NamedTensors read_tensors(std::span<const TensorEntry> entries) const {
    NamedTensors tensors;
    std::vector<std::byte*> memory;
    std::vector<TensorForm> forms;  // all before anything is allocated
    for (const TensorEntry& entry : entries) forms.push_back(form_of(entry));
    for (size_t i = 0; i < entries.size(); ++i) {
      at::Tensor tensor = at::empty(forms[i].sizes, at::TensorOptions(forms[i].type));
      memory.push_back(static_cast<std::byte*>(tensor.data_ptr()));
      tensors.emplace_back(entries[i].name, std::move(tensor));
    }
    read(entries, memory);
    return tensors;
  }

  at::Tensor map_tensor(const TensorEntry& entry) const {
    const TensorForm form = form_of(entry);
    const uint64_t offset = data_begin + entry.begin;
    const bool aligned = offset % c10::elementSize(form.type) == 0;
    if (!aligned || entry.begin == entry.end) {
      return std::move(read_tensors({&entry, 1})[0].second);
    }
    std::shared_ptr<std::byte> start;
    {
      const std::lock_guard lock(mutex);
      if (map.expired()) {
        start = file.map();
        map = start;
      } else {
        start = map.lock();
      }
    }
    return at::from_blob(
        start.get() + offset, form.sizes, [start](void*) {}, at::TensorOptions(form.type));
  }

  InputFile file;
  Header header;
  uint64_t data_begin = 0;
  uint64_t header_hash = 0;
  std::vector<uint64_t> checksums;  // in the order of the entries; empty: none
  std::unordered_map<std::string, size_t> by_name;
  mutable std::mutex mutex;
  mutable std::weak_ptr<std::byte> map;
};

SafetensorsFile::SafetensorsFile(const fs::path& path, Checksums checksums)
    : state_(std::make_shared<const State>(path, checksums)) {}

const fs::path& SafetensorsFile::path() const {
  return state_->file.path();
}
const std::vector<TensorEntry>& SafetensorsFile::entries() const {
  return state_->header.entries;
}
const Metadata& SafetensorsFile::metadata() const {
  return state_->header.metadata;
}
bool SafetensorsFile::contains(std::string_view name) const {
  return state_->by_name.contains(std::string(name));
}

const TensorEntry& SafetensorsFile::entry(std::string_view name) const {
  const auto found = state_->by_name.find(std::string(name));
  if (found != state_->by_name.end()) return entries()[found->second];
  std::vector<std::string> names;
  for (const TensorEntry& entry : entries()) names.push_back(entry.name);
  const std::string guess = nearest(std::string(name), names);
  throw ValueError(concat(path().string(), ": no tensor '", name, "' among its ", names.size(),
                          guess.empty() ? "" : "; did you mean '" + guess + "'?"));
}

at::Tensor SafetensorsFile::tensor(std::string_view name, Memory memory) const {
  const TensorEntry& one = entry(name);
  if (memory == Memory::mapped) return state_->map_tensor(one);
  return std::move(state_->read_tensors({&one, 1})[0].second);
}

NamedTensors SafetensorsFile::tensors(Memory memory) const {
  if (memory == Memory::own) return state_->read_tensors(entries());
  NamedTensors tensors;
  for (const TensorEntry& entry : entries()) {
    tensors.emplace_back(entry.name, state_->map_tensor(entry));
  }
  return tensors;
}

bool SafetensorsFile::has_checksums() const {
  return !state_->checksums.empty();
}
void SafetensorsFile::verify() const {
  if (has_checksums()) state_->read(entries(), {});
}
void SafetensorsFile::verify(std::string_view name) const {
  const TensorEntry& one = entry(name);
  if (has_checksums()) state_->read({&one, 1}, {});
}
uint64_t SafetensorsFile::header_hash() const {
  return state_->header_hash;
}

NamedTensors read_safetensors(const fs::path& path, Metadata* metadata) {
  const SafetensorsFile file(path);
  NamedTensors tensors = file.tensors();
  if (metadata != nullptr) *metadata = file.metadata();
  return tensors;
}

namespace {

void check_hash(const fs::path& path, const std::string& what, uint64_t got, uint64_t expected) {
  if (got == expected) return;
  throw CorruptFileError(path, concat(what, " checksum is ", hash_text(got), ", expected ",
                                      hash_text(expected), "; the file was damaged or replaced"));
}

// A file whose digest is of all its bytes: version 1.
void check_whole_file(const fs::path& path, const Digest& expected) {
  const InputFile file(path);
  std::vector<Piece> pieces;
  add_pieces(0, nullptr, file.size(), pieces);
  read_pieces(file, pieces, /*hash=*/true);
  std::vector<uint64_t> blocks;
  for (const Piece& piece : pieces) blocks.push_back(piece.hash);
  check_hash(path, "its", hash_of(std::as_bytes(std::span(blocks))), expected.hash);
}

}  // namespace

SafetensorsFile open_safetensors_hashed(const fs::path& path, const Digest& expected) {
  if (expected.of == Digest::Of::file) check_whole_file(path, expected);
  SafetensorsFile file(path);
  if (expected.of == Digest::Of::header) {
    check_hash(path, "its header's", file.header_hash(), expected.hash);
  }
  return file;
}

NamedTensors read_safetensors_hashed(const fs::path& path, const Digest& expected) {
  return open_safetensors_hashed(path, expected).tensors();
}

}  // namespace bellows::checkpoint
