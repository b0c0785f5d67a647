#include "bellows/data/tar_file.h"

#include <algorithm>
#include <archive.h>
#include <archive_entry.h>
#include <array>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <sys/stat.h>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

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

constexpr size_t kMark = 1024;

bool ends_marked(std::span<const std::byte> bytes) {
  return bytes.size() >= kMark && std::all_of(bytes.end() - kMark, bytes.end(),
                                              [](std::byte b) { return b == std::byte{0}; });
}

bool file_ends_marked(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, kMark> tail{};
  file.seekg(-static_cast<std::streamoff>(kMark), std::ios::end);
  return file.read(tail.data(), kMark) && ends_marked(std::as_bytes(std::span(tail)));
}

}  // namespace

struct TarFile::Archive {
  Archive(std::filesystem::path name, int64_t limit)
      : path(std::move(name)), most_bytes(limit), handle(archive_read_new()) {
    if (handle == nullptr) throw std::bad_alloc();
    archive_read_support_filter_all(handle);
    archive_read_support_format_tar(handle);
  }
  ~Archive() { archive_read_free(handle); }
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  [[noreturn]] void fail(const std::string& what) const {
    const std::string where =
        entries == 0 ? "at its begin" : concat("entry ", entries - 1, " (", name, ")");
    throw CorruptFileError(path, where + ": " + what);
  }
  std::string reason() const {
    const char* text = archive_error_string(handle);
    return text != nullptr ? text : "unknown damage";
  }

  // Goes to the next file's header; false at the end.
  bool next_file() {
    while (!ended) {
      const int status = archive_read_next_header(handle, &entry);
      if (status == ARCHIVE_EOF) {
        ended = true;
        check_mark();
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

  // Without it an archive that was cut between two entries looks whole.
  void check_mark() const {
    const bool compressed = archive_filter_code(handle, 0) != ARCHIVE_FILTER_NONE;
    if (!compressed && !marked)
      fail("got no end-of-archive mark (1024 bytes of 0) after it: cut off");
  }

  // In pieces, so that a false size costs no memory.
  std::string data() {
    const int64_t claimed = archive_entry_size(entry);
    if (claimed > most_bytes)
      fail(concat("got a size of ", claimed, " bytes, expected at most ", most_bytes));
    std::string bytes;
    for (;;) {
      const void* piece = nullptr;
      size_t size = 0;
      int64_t offset = 0;
      const int status = archive_read_data_block(handle, &piece, &size, &offset);
      if (status == ARCHIVE_EOF) break;
      if (status != ARCHIVE_OK) {
        fail(concat("got ", bytes.size(), " bytes, expected ", claimed, ": ", reason()));
      }
      // Sparse files have holes; a hole must not be larger than the file says it is.
      if (offset < std::ssize(bytes) || offset > claimed ||
          static_cast<int64_t>(size) > claimed - offset) {
        fail(concat("got data at byte ", offset, " of a file of ", claimed, " bytes"));
      }
      bytes.resize(static_cast<size_t>(offset));
      bytes.append(static_cast<const char*>(piece), size);
    }
    if (std::ssize(bytes) != claimed)
      fail(concat("got ", bytes.size(), " bytes, expected ", claimed));
    return bytes;
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
  archive* const handle;
  archive_entry* entry = nullptr;
  int64_t entries = 0;
  std::string name;
  bool marked = false;  // whether the file ends in the mark
  bool ended = false;
  bool ahead = false;  // whether the header of the next file has been read
};

TarFile::TarFile(const std::filesystem::path& path, int64_t most_bytes)
    : archive_(std::make_unique<Archive>(path, most_bytes)) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == -1) throw FileError(path, "open", errno);
  if (S_ISDIR(status.st_mode)) throw FileError(path, "read", EISDIR);
  archive_->marked = file_ends_marked(path);
  constexpr size_t kBlock = 1 << 18;
  if (archive_read_open_filename(archive_->handle, path.c_str(), kBlock) != ARCHIVE_OK)
    archive_->fail(archive_->reason());
}

TarFile::TarFile(std::span<const std::byte> bytes, const std::filesystem::path& name,
                 int64_t most_bytes)
    : archive_(std::make_unique<Archive>(name, most_bytes)) {
  archive_->marked = ends_marked(bytes);
  if (archive_read_open_memory(archive_->handle, bytes.data(), bytes.size()) != ARCHIVE_OK)
    archive_->fail(archive_->reason());
}

TarFile::~TarFile() = default;

std::optional<TarSample> TarFile::next() {
  return archive_->sample(/*with_data=*/true);
}

bool TarFile::skip() {
  return archive_->sample(/*with_data=*/false).has_value();
}

}  // namespace bellows::data
