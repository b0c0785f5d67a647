#include "bellows/data/cifar_file.h"

#include <span>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/byte_source.h"

namespace bellows::data {

CifarFile read_cifar_file(const std::filesystem::path& path, int64_t label_bytes, int64_t classes) {
  OpenedFile opened = open_maybe_gzip(path);
  CifarFile file;
  file.path = opened.path;
  const auto record_bytes = static_cast<size_t>(label_bytes + kCifarImageBytes);
  std::vector<std::byte> record(record_bytes);
  for (;;) {
    const size_t got = opened.bytes->read(record);
    const std::string defect = opened.bytes->defect();
    if (got == 0 && defect.empty()) break;
    if (got < record_bytes) {
      throw CorruptFileError(
          file.path, concat("record ", file.labels.size(), ": got ", got, " bytes, expected ",
                            record_bytes, ": ", defect.empty() ? "cut off" : defect));
    }
    const auto label = std::to_integer<uint8_t>(record[static_cast<size_t>(label_bytes - 1)]);
    if (label >= classes) {
      throw CorruptFileError(file.path, concat("record ", file.labels.size(), ": got label ",
                                               int{label}, ", expected 0 to ", classes - 1));
    }
    file.labels.push_back(label);
    const auto* pixels = reinterpret_cast<const uint8_t*>(record.data()) + label_bytes;
    file.images.insert(file.images.end(), pixels, pixels + kCifarImageBytes);
  }
  if (file.labels.empty()) {
    throw CorruptFileError(file.path,
                           concat("got 0 bytes, expected records of ", record_bytes, " bytes"));
  }
  return file;
}

}  // namespace bellows::data
