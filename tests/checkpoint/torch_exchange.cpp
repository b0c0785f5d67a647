// Reads torch.save files and writes what they hold to others. Each line of standard input is
// IN<tab>OUT<tab>SELECT; each gets a line on standard output: "ok", or the message of the error.
#include <iostream>
#include <sstream>
#include <string>

#include "bellows/checkpoint/torch_file.h"
#include "bellows/core/error.h"

int main() {
  namespace checkpoint = bellows::checkpoint;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string in, out, select;
    std::getline(words, in, '\t');
    std::getline(words, out, '\t');
    std::getline(words, select);
    try {
      checkpoint::write_torch_file(out, checkpoint::read_torch_file(in, select));
      std::cout << "ok" << std::endl;
    } catch (const bellows::Error& error) {
      std::cout << error.what() << std::endl;
    }
  }
  return 0;
}
