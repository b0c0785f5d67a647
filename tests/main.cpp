#include <gtest/gtest.h>

#include "bellows/device/init.h"

int main(int argc, char** argv) {
  bellows::init();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
