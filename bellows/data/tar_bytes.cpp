#include "bellows/data/tar_bytes.h"

#include <algorithm>
#include <archive.h>
#include <archive_entry.h>
#include <array>
#include <cerrno>
#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "bellows/data/byte_source.h"

namespace bellows::data {
namespace {

using Input = std::shared_ptr<const formats::InputBytes>;

constexpr size_t kBlock = 1 << 18;

// As they lie in the file.
class Plain : public TarBytes {
 public:
  explicit Plain(Input input) : input_(std::move(input)), block_(kBlock) {}

  std::span<const std::byte> next() override {
    const auto size = std::min<uint64_t>(block_.size(), left());
    const std::span bytes(block_.data(), size);
    input_->read(at_, bytes);
    at_ += size;
    return bytes;
  }

  int64_t skip(int64_t count) override {
    const auto skipped = std::min(static_cast<uint64_t>(count), left());
    at_ += skipped;
    return static_cast<int64_t>(skipped);
  }

 private:
  uint64_t left() const { return input_->size() - at_; }

  Input input_;
  std::vector<std::byte> block_;
  uint64_t at_ = 0;
};

class Sequence : public ByteSource {
 public:
  explicit Sequence(Input input) : input_(std::move(input)) {}
  size_t read(std::span<std::byte> out) override {
    const auto size = std::min<uint64_t>(out.size(), input_->size() - at_);
    input_->read(at_, out.first(size));
    at_ += size;
    return size;
  }
  bool compressed() const override { return false; }
  uint64_t most_bytes() const override { return input_->size(); }

 private:
  Input input_;
  uint64_t at_ = 0;
};

// libarchive's own reader does not compare checksums.
class Gzip : public TarBytes {
 public:
  explicit Gzip(Input input)
      : source_(gunzip(std::make_unique<Sequence>(std::move(input)))), block_(kBlock) {}
  std::span<const std::byte> next() override { return {block_.data(), source_->read(block_)}; }
  std::string defect() const override { return source_->defect(); }

 private:
  std::unique_ptr<ByteSource> source_;
  std::vector<std::byte> block_;
};

// What libarchive unpacks.
class Unpacked : public TarBytes {
 public:
  explicit Unpacked(Input input) : packed_(std::move(input)), handle_(archive_read_new()) {
    if (handle_ == nullptr) throw std::bad_alloc();
    archive_read_support_filter_all(handle_);
    archive_read_support_format_raw(handle_);
    archive_entry* entry = nullptr;
    const bool open =
        archive_read_open(handle_, this, nullptr, read_packed, nullptr) == ARCHIVE_OK &&
        archive_read_next_header(handle_, &entry) == ARCHIVE_OK;
    if (error_) {
      archive_read_free(handle_);
      std::rethrow_exception(error_);
    }
    if (!open) note_defect();
  }
  ~Unpacked() override { archive_read_free(handle_); }
  Unpacked(const Unpacked&) = delete;
  Unpacked& operator=(const Unpacked&) = delete;

  bool compressed() const { return archive_filter_code(handle_, 0) != ARCHIVE_FILTER_NONE; }

  std::span<const std::byte> next() override {
    if (!defect_.empty()) return {};
    const void* data = nullptr;
    size_t size = 0;
    int64_t offset = 0;
    int status = ARCHIVE_OK;
    while (status == ARCHIVE_OK && size == 0)
      status = archive_read_data_block(handle_, &data, &size, &offset);
    if (error_) std::rethrow_exception(error_);
    if (status == ARCHIVE_EOF) return {};
    if (status != ARCHIVE_OK) {
      note_defect();
      return {};
    }
    return {static_cast<const std::byte*>(data), size};
  }
  std::string defect() const override { return defect_; }

 private:
  void note_defect() {
    const char* text = archive_error_string(handle_);
    defect_ = text != nullptr ? text : "the compressed data are damaged";
  }

  // An exception must not pass through libarchive.
  static la_ssize_t read_packed(archive* handle, void* self, const void** data) {
    auto& own = *static_cast<Unpacked*>(self);
    try {
      const auto bytes = own.packed_.next();
      *data = bytes.data();
      return std::ssize(bytes);
    } catch (...) {
      own.error_ = std::current_exception();
      archive_set_error(handle, EIO, "the file could not be read");
      return -1;
    }
  }

  Plain packed_;
  archive* const handle_;
  std::exception_ptr error_;
  std::string defect_;
};

}  // namespace

std::unique_ptr<TarBytes> open_tar_bytes(std::shared_ptr<const formats::InputBytes> input) {
  constexpr std::array kGzip = {std::byte{0x1f}, std::byte{0x8b}};
  std::array<std::byte, 2> first{};
  if (input->size() < first.size()) return std::make_unique<Plain>(std::move(input));
  input->read(0, first);
  if (first == kGzip) return std::make_unique<Gzip>(std::move(input));
  auto unpacked = std::make_unique<Unpacked>(input);
  if (unpacked->compressed()) return unpacked;
  return std::make_unique<Plain>(std::move(input));
}

}  // namespace bellows::data
