// Writes one of everything for tests/python/tensorboard_readback.py. Usage: write_events FOLDER
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>

#include "bellows/device/init.h"
#include "bellows/train/tensorboard.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  bellows::init();
  bellows::Tree state;
  {
    bellows::train::SummaryWriter writer(argv[1]);
    for (int step = 1; step <= 100; ++step) writer.add_scalar("train/loss", 1.0 / step, step);
    writer.add_histogram("weights", at::arange(-50, 51, at::kDouble).div(10), 3);
    writer.add_text("note", "**bold** ü", 7);
    writer.add_scalar("resumed", 1, 1);
    writer.add_scalar("resumed", 1, 2);
    state = writer.state_dict();
    writer.add_scalar("resumed", 1, 77);
  }
  bellows::train::SummaryWriter resumed(argv[1]);
  resumed.load_state_dict(state);
  resumed.add_scalar("resumed", 1, 3);
  resumed.add_scalar("resumed", 1, 4);
  resumed.flush();
  return 0;
}
