// Reads a safetensors file and writes its contents to another: safetensors_exchange IN OUT. A
// refused file ends with 1 and the message on standard error.
#include <cstdio>

#include "bellows/checkpoint/safetensors.h"
#include "bellows/core/error.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    bellows::checkpoint::Metadata metadata;
    const auto tensors = bellows::checkpoint::read_safetensors(argv[1], &metadata);
    bellows::checkpoint::write_safetensors(argv[2], tensors, metadata);
  } catch (const bellows::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
