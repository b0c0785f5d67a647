// Reads a torch.save file and writes what it holds to another: torch_exchange IN OUT [SELECT]. A
// refused file ends with 1 and the message on standard error.
#include <cstdio>

#include "bellows/checkpoint/torch_file.h"
#include "bellows/core/error.h"

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) return 2;
  try {
    namespace checkpoint = bellows::checkpoint;
    const std::string_view select = argc == 4 ? argv[3] : "";
    checkpoint::write_torch_file(argv[2], checkpoint::read_torch_file(argv[1], select));
  } catch (const bellows::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
