// A program of your own on an installed Bellows. Prints the models and the devices it can use.
// To build it, after `make install` in Bellows' own folder:
//
//   cmake -S examples/consumer -B build/app -DCMAKE_PREFIX_PATH=$HOME/.local
//         -DLIBTORCH=/path/to/libtorch
//   cmake --build build/app && build/app/app
#include <iostream>

#include "bellows/device/device.h"
#include "bellows/device/init.h"
#include "bellows/nn/registry.h"

int main() {
  bellows::init();
  for (const std::string& name : bellows::nn::builtin_models().names()) {
    std::cout << "model " << name << '\n';
  }
  for (const bellows::DeviceInfo& device : bellows::list_devices()) {
    std::cout << "device " << device.device.str() << " (" << device.name << ")\n";
  }
}
