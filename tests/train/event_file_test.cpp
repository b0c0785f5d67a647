#include "bellows/train/events/event_file.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "bellows/train/events/records.h"
#include "tests/support/process.h"

namespace bellows::events {
namespace {

TEST(Crc32cTest, GivesTheValuesOfRfc3720) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
}

class EventFileTest : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return folder_ / "events"; }
  void write_scalars(int count) {
    EventFile file(path());
    for (int step = 1; step <= count; ++step) file.scalar("loss", 1.0f, step, 0);
  }
  testing::TemporaryFolder folder_;
};

TEST_F(EventFileTest, ReopeningKeepsTheFirstRecords) {
  write_scalars(3);
  const std::string whole = read_file(path());
  EventFile again(path(), 3);
  EXPECT_EQ(again.records(), 3);
  const std::string kept = read_file(path());
  EXPECT_LT(kept.size(), whole.size());
  EXPECT_EQ(whole.substr(0, kept.size()), kept);
}

TEST_F(EventFileTest, TornRecordIsDropped) {
  write_scalars(3);
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) - 1);
  EXPECT_EQ(EventFile(path(), 4).records(), 3);
}

TEST_F(EventFileTest, DamagedRecordEndsWhatIsKept) {
  write_scalars(3);
  std::string bytes = read_file(path());
  bytes[bytes.size() - 6] ^= 1;  // in the last record's message
  write_file_atomically(path(), bytes);
  EXPECT_EQ(EventFile(path(), 4).records(), 3);
}

TEST_F(EventFileTest, KeepingNothingStartsAfreshWithTheVersionRecord) {
  write_scalars(3);
  EventFile again(path());
  EXPECT_EQ(again.records(), 1);
  EXPECT_NE(read_file(path()).find("brain.Event:2"), std::string::npos);
}

}  // namespace
}  // namespace bellows::events
