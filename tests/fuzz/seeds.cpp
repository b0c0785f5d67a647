// Writes a few good files of each format for libFuzzer to begin with. Usage: seeds FOLDER
#include <filesystem>
#include <fstream>
#include <string>

#include "bellows/train/events/records.h"
#include "tests/data/image_files.h"
#include "tests/data/support.h"

using namespace bellows::data::test;
using namespace std::string_literals;

int main(int, char** arguments) {
  const std::filesystem::path root = arguments[1];
  const auto write = [&](const std::string& name, const std::string& bytes) {
    std::filesystem::create_directories((root / name).parent_path());
    std::ofstream(root / name, std::ios::binary) << bytes;
  };
  const std::string idx = idx_bytes(0x0B, {2, 3}, "123456789012");
  write("idx/plain", idx);
  write("idx/packed", gzip(idx));
  const std::string cifar = "\1\7"s + std::string(3072, 'x');
  write("cifar/plain", cifar + cifar);
  write("cifar/packed", gzip(cifar));
  write("npy/plain",
        "\x93NUMPY\1\0\x46\0"s +
            "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }           \n"s +
            "123456789012");
  write("csv/plain", "a,\"b\"\"\n\",c\r\n1,-2.5e3,\"3\"\n4,inf,+6\n");
  const std::string record = bellows::events::record_of("message");
  write("records/plain", record + record);
  write("records/cut", "line\n" + record.substr(0, record.size() - 1));
  const std::string tar = tar_bytes({{"a/1.cls", "1"}, {"a/1.txt", "text"}, {"2.cls", "2"}});
  write("tar/plain", tar);
  write("tar/packed", gzip(tar));
  for (const int channels : {1, 3, 4}) {
    const std::string number = std::to_string(channels);
    write("image/" + number + ".jpg", jpeg_bytes(picture(20, 17, channels), 50));
    write("image/" + number + ".progressive.jpg", jpeg_bytes(picture(20, 17, channels), 50, true));
    write("image/" + number + ".png", png_bytes(picture(9, 7, channels)));
    write("image/" + number + ".16.png", png_bytes(picture(9, 7, channels), 16, true));
  }
}
