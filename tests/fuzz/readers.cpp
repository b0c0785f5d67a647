// The readers of files under libFuzzer: any bytes are read, or refused by a bellows::Error.
// One program for each reader: compiled with -DREADER=name (tests/fuzz/fuzz.sh).
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "bellows/checkpoint/manifest.h"
#include "bellows/checkpoint/safetensors_header.h"
#include "bellows/core/error.h"
#include "bellows/data/cifar_file.h"
#include "bellows/data/csv_file.h"
#include "bellows/data/idx_file.h"
#include "bellows/data/image_codec.h"
#include "bellows/data/npy_file.h"
#include "bellows/data/tar_file.h"
#include "bellows/formats/file_kind.h"
#include "bellows/formats/torch_contents.h"
#include "bellows/train/config.h"
#include "bellows/train/events/records.h"
#ifdef WITH_LIBTORCH
#include "bellows/checkpoint/tree_json.h"
#endif

namespace {

using namespace bellows::data;
using Bytes = std::span<const std::byte>;

// For readers that take a path.
class MemoryFile {
 public:
  explicit MemoryFile(Bytes bytes) : fd_(::memfd_create("fuzz", 0)) {
    if (fd_ == -1 || ::write(fd_, bytes.data(), bytes.size()) != std::ssize(bytes)) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

[[maybe_unused]] void idx(Bytes bytes) {
  read_idx_file(MemoryFile(bytes).path());
}

[[maybe_unused]] void cifar(Bytes bytes) {
  read_cifar_file(MemoryFile(bytes).path(), 2, 100);
}

[[maybe_unused]] void npy(Bytes bytes) {
  parse_npy(bytes, "file");
}

[[maybe_unused]] void csv(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const bool header = text.size() % 2 == 0;
  parse_csv(text, "file", ',', header, header ? std::optional(0.5) : std::nullopt);
}

[[maybe_unused]] void tar(Bytes bytes) {
  TarFile file(bytes, "file", 1 << 20);
  while (file.next()) continue;
}

[[maybe_unused]] void image(Bytes bytes) {
  std::vector<uint8_t> pixels;
  const CodecOptions options{.channels = bytes.size() % 2 == 0 ? 1 : 3,
                             .least_height = 8,
                             .least_width = 8,
                             .most_pixels = 1 << 16};
  decode_image_rows(bytes, options, [&](int64_t height, int64_t width) {
    pixels.resize(static_cast<size_t>(height * width * options.channels));
    return pixels.data();
  });
}

// The header ends with the last brace; the data follow.
[[maybe_unused]] void safetensors(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() < 8) return;
  const std::string_view header = text.substr(8);
  const size_t end = header.rfind('}');
  const size_t length = end == std::string_view::npos ? header.size() : end + 1;
  bellows::checkpoint::parse_header("file", header.substr(0, length), header.size() - length);
}

// The checksum fits in half of the inputs.
[[maybe_unused]] void manifest(Bytes bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.size() % 2 == 0) text += bellows::checkpoint::manifest_end(text);
  bellows::checkpoint::parse_manifest("checkpoint.json", text);
}

// Records of lines, then the bytes as they are.
[[maybe_unused]] void records(Bytes bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t line = std::min(text.find('\n'), text.size());
  const std::string file = bellows::events::record_of(text.substr(0, line)) + text.substr(line);
  if (bellows::events::first_records(file, 1).bytes > file.size()) std::abort();
  bellows::events::first_records(text, 10);
}

[[maybe_unused]] void pickle(Bytes bytes) {
  const bellows::formats::InputMemory file(bytes, "file");
  bellows::formats::pickle::Heap heap("file", bytes.size() + (uint64_t{15} << 20));
  bellows::formats::pickle::Cursor in(file, 0, file.size());
  bellows::formats::pickle::load(in, heap);
}

[[maybe_unused]] void torch(Bytes bytes) {
  static_cast<void>(bellows::formats::kind_of(MemoryFile(bytes).path()));
  const bellows::formats::InputMemory file(bytes, "file");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (bellows::formats::begins_as_legacy_torch(text)) {
    bellows::formats::read_torch_legacy(file);
    return;
  }
  const auto directory = bellows::formats::read_zip_directory(file);
  if (const auto prefix = bellows::formats::torch_archive_prefix(directory)) {
    bellows::formats::read_torch_zip(file, directory, *prefix);
  }
}

[[maybe_unused]] void config(Bytes bytes) {
  bellows::train::Config::load(MemoryFile(bytes).path());
}

#ifdef WITH_LIBTORCH
// What is read is written and read again.
[[maybe_unused]] void tree(Bytes bytes) {
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::map<std::string, at::Tensor> none;
  bellows::NamedTensors tensors;
  const std::string again =
      bellows::checkpoint::tree_to_json(bellows::checkpoint::tree_from_json(text, none), tensors);
  bellows::NamedTensors twice;
  const bellows::Tree read = bellows::checkpoint::tree_from_json(again, none);
  if (bellows::checkpoint::tree_to_json(read, twice) != again) std::abort();
}
#endif

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    READER(std::as_bytes(std::span(data, size)));
  } catch (const bellows::Error&) {
  }
  return 0;
}
