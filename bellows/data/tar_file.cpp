#include "bellows/data/tar_file.h"

#include <algorithm>
#include <archive.h>
#include <archive_entry.h>
#include <cctype>
#include <cerrno>
#include <exception>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/tar_bytes.h"

namespace bellows::data {
namespace {

// "a/b.c/0001.seg.PNG" -> "a/b.c/0001", "seg.png".
std::pair<std::string, std::string> split_name(const std::string& name) {
  const size_t slash = name.rfind('/');
  const size_t dot = name.find('.', slash == std::string::npos ? 0 : slash + 1);
  if (dot == std::string::npos) return {name, ""};
  std::string ending = name.substr(dot + 1);
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return {name.substr(0, dot), ending};
}

// End of the last byte of `bytes` that is not 0.
int64_t end_of_content(std::span<const std::byte> bytes) {
  const auto last =
      std::find_if(bytes.rbegin(), bytes.rend(), [](std::byte b) { return b != std::byte{0}; });
  return bytes.rend() - last;
}

}  // namespace

struct TarFile::Archive {
  Archive(std::shared_ptr<const formats::InputBytes> input, int64_t limit)
      : path(input->path()),
        most_bytes(limit),
        bytes(open_tar_bytes(std::move(input))),
        handle(archive_read_new()) {
    if (handle == nullptr) throw std::bad_alloc();
    archive_read_support_format_tar(handle);
    archive_read_set_callback_data(handle, this);
    archive_read_set_read_callback(handle, give);
    archive_read_set_skip_callback(handle, skip);
  }
  ~Archive() { archive_read_free(handle); }
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  // Called by libarchive, through which no exception must pass.
  static la_ssize_t give(archive* handle, void* self, const void** data) {
    auto& own = *static_cast<Archive*>(self);
    try {
      const auto piece = own.next_bytes();
      *data = piece.data();
      if (!piece.empty() || own.bytes->defect().empty()) return std::ssize(piece);
    } catch (...) {
      own.error = std::current_exception();
    }
    archive_set_error(handle, EIO, "%s", own.bytes->defect().c_str());
    return -1;
  }
  static la_int64_t skip(archive*, void* self, la_int64_t count) {
    auto& own = *static_cast<Archive*>(self);
    const int64_t skipped = own.bytes->skip(count);
    own.given += skipped;
    return skipped;
  }

  std::span<const std::byte> next_bytes() {
    const auto piece = bytes->next();
    if (const int64_t content = end_of_content(piece); content > 0) content_end = given + content;
    given += std::ssize(piece);
    return piece;
  }

  [[noreturn]] void fail(const std::string& what) const {
    if (error) std::rethrow_exception(error);
    const std::string where =
        entries == 0 ? "at its begin" : concat("entry ", entries - 1, " (", name, ")");
    throw CorruptFileError(path, where + ": " + what);
  }
  std::string reason() const {
    if (std::string defect = bytes->defect(); !defect.empty()) return defect;
    const char* text = archive_error_string(handle);
    return text != nullptr ? text : "unknown damage";
  }

  void open() {
    if (archive_read_open1(handle) != ARCHIVE_OK) fail(reason());
  }

  // Goes to the next file's header; false at the end.
  bool next_file() {
    while (!ended) {
      if (entries > 0 && archive_read_data_skip(handle) != ARCHIVE_OK)
        fail(concat("got no whole file: ", reason()));
      const int64_t end = archive_filter_bytes(handle, 0);
      const int status = archive_read_next_header(handle, &entry);
      if (status == ARCHIVE_EOF) {
        ended = true;
        check_end(end, archive_filter_bytes(handle, 0));
        break;
      }
      if (status != ARCHIVE_OK && status != ARCHIVE_WARN)
        fail(concat("got no whole archive after it: ", reason()));
      ++entries;
      const char* text = archive_entry_pathname(entry);
      name = text != nullptr ? text : "";
      if (name.empty()) fail("got no readable name, expected one");
      if (archive_entry_filetype(entry) == AE_IFREG && archive_entry_hardlink(entry) == nullptr)
        return true;
    }
    return false;
  }

  // The mark lies from `begin` to `end`; without it an archive that was cut between two entries
  // looks whole. Only zeros may follow, to the end of the compressed data and their checksum.
  void check_end(int64_t begin, int64_t end) {
    constexpr int64_t kMark = 1024;
    while (!next_bytes().empty()) continue;
    if (!bytes->defect().empty()) fail(bytes->defect());
    if (end - begin < kMark) fail("got no end-of-archive mark (1024 bytes of 0) after it: cut off");
    if (content_end > end) {
      fail(concat("got data up to byte ", content_end, ", expected the end at byte ", end,
                  ": are these several archives in one file?"));
    }
  }

  // In pieces, so that a false size costs no memory.
  std::string data() {
    const int64_t claimed = archive_entry_size(entry);
    if (claimed > most_bytes)
      fail(concat("got a size of ", claimed, " bytes, expected at most ", most_bytes));
    std::string content;
    for (;;) {
      const void* piece = nullptr;
      size_t size = 0;
      int64_t offset = 0;
      const int status = archive_read_data_block(handle, &piece, &size, &offset);
      if (status == ARCHIVE_EOF) break;
      if (status != ARCHIVE_OK) {
        fail(concat("got ", content.size(), " bytes, expected ", claimed, ": ", reason()));
      }
      // Sparse files have holes; a hole must not be larger than the file says it is.
      if (offset < std::ssize(content) || offset > claimed ||
          static_cast<int64_t>(size) > claimed - offset) {
        fail(concat("got data at byte ", offset, " of a file of ", claimed, " bytes"));
      }
      content.resize(static_cast<size_t>(offset));
      content.append(static_cast<const char*>(piece), size);
    }
    if (std::ssize(content) != claimed) {
      if (archive_entry_sparse_count(entry) == 0)
        fail(concat("got ", content.size(), " bytes, expected ", claimed));
      content.resize(static_cast<size_t>(claimed));  // it ends in a hole
    }
    return content;
  }

  std::optional<TarSample> sample(bool with_data) {
    if (!ahead && !(ahead = next_file())) return std::nullopt;
    TarSample sample;
    sample.key = split_name(name).first;
    while (ahead) {
      auto [key, ending] = split_name(name);
      if (key != sample.key) break;
      if (sample.parts.contains(ending))
        fail(concat("got a second file of this name, expected each once"));
      sample.parts.emplace(std::move(ending), with_data ? data() : "");
      ahead = next_file();
    }
    return sample;
  }

  const std::filesystem::path path;
  const int64_t most_bytes;
  const std::unique_ptr<TarBytes> bytes;
  archive* const handle;
  std::exception_ptr error;  // of a callback
  int64_t given = 0;         // bytes read or skipped
  int64_t content_end = 0;   // end of the last byte read that is not 0
  archive_entry* entry = nullptr;
  int64_t entries = 0;
  std::string name;
  bool ended = false;
  bool ahead = false;  // whether the header of the next file has been read
};

TarFile::TarFile(const std::filesystem::path& path, int64_t most_bytes)
    : archive_(std::make_unique<Archive>(std::make_shared<formats::InputFile>(path), most_bytes)) {
  archive_->open();
}

TarFile::TarFile(std::span<const std::byte> bytes, const std::filesystem::path& name,
                 int64_t most_bytes)
    : archive_(std::make_unique<Archive>(std::make_shared<formats::InputMemory>(bytes, name),
                                         most_bytes)) {
  archive_->open();
}

TarFile::~TarFile() = default;

std::optional<TarSample> TarFile::next() {
  return archive_->sample(/*with_data=*/true);
}

bool TarFile::skip() {
  return archive_->sample(/*with_data=*/false).has_value();
}

}  // namespace bellows::data
