// Reads a safetensors file, mapped and into memory of its own, and writes its contents to another:
// safetensors_exchange IN OUT [checksums]. A refused file ends with 1 and the message on standard
// error.
#include <cstdio>
#include <cstring>

#include "bellows/checkpoint/safetensors_file.h"
#include "bellows/core/error.h"

int main(int argc, char** argv) {
  using namespace bellows::checkpoint;
  if (argc < 3) return 2;
  try {
    const SafetensorsFile file(argv[1]);
    const auto tensors = file.tensors();
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor mapped = file.tensor(name, Memory::mapped);
      if (tensor.nbytes() > 0 &&
          std::memcmp(mapped.const_data_ptr(), tensor.const_data_ptr(), tensor.nbytes()) != 0) {
        std::fprintf(stderr, "tensor '%s': the mapped bytes differ\n", name.c_str());
        return 3;
      }
    }
    write_safetensors(argv[2], tensors, file.metadata(), argc > 3 ? Checksums::yes : Checksums::no);
  } catch (const bellows::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
