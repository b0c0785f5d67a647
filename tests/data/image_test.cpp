#include "bellows/data/image.h"

#include <gmock/gmock.h>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/data/loader.h"
#include "tests/data/damage.h"
#include "tests/data/image_files.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::jpeg_bytes;
using test::message_of;
using test::picture;
using test::Pixels;
using test::png_bytes;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

at::Tensor tensor_of(const Pixels& pixels) {
  return at::from_blob(const_cast<uint8_t*>(pixels.values.data()),
                       {pixels.height, pixels.width, pixels.channels}, at::kByte)
      .permute({2, 0, 1})
      .clone();
}

at::Tensor decode(const std::string& bytes, const ImageOptions& options = {}) {
  return decode_image(std::as_bytes(std::span(bytes)), options);
}

std::string refused(const std::string& bytes, const ImageOptions& options = {}) {
  return message_of<EnvironmentError>([&] { decode(bytes, options); });
}

int64_t largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.to(at::kInt).sub(b.to(at::kInt)).abs().max().item<int64_t>();
}

TEST(PngTest, WhatIsWrittenIsReadBack) {
  for (const int channels : {1, 3}) {
    const at::Tensor image = at::randint(256, {channels, 7, 5}, at::kByte);
    for (const at::Tensor& some : {image, image.flip(0), image.transpose(1, 2)}) {
      const std::string file = encode_png(some);
      EXPECT_TRUE(
          at::equal(decode_image(std::as_bytes(std::span(file)), {.channels = channels}), some));
    }
  }
  EXPECT_THROW(encode_png(at::randint(256, {2, 7, 5}, at::kByte)), ValueError);
  EXPECT_THROW(encode_png(at::randint(256, {3, 7, 5}, at::kFloat)), ValueError);
  EXPECT_THROW(encode_png(at::Tensor()), ValueError);
}

TEST(ImageTest, PngIsDecodedExactly) {
  const Pixels rgb = picture(17, 23);
  const at::Tensor image = decode(png_bytes(rgb));
  EXPECT_EQ(image.sizes(), (at::IntArrayRef{3, 17, 23}));
  EXPECT_TRUE(image.permute({1, 2, 0}).is_contiguous());
  EXPECT_TRUE(at::equal(image, tensor_of(rgb)));
  EXPECT_TRUE(at::equal(decode(png_bytes(rgb, 8, true)), tensor_of(rgb)));
  EXPECT_TRUE(at::equal(decode(png_bytes(rgb, 16)), tensor_of(rgb)));
}

TEST(ImageTest, AlphaIsDroppedAndGreyBecomesColourOrStays) {
  const Pixels rgba = picture(6, 5, 4);
  EXPECT_TRUE(at::equal(decode(png_bytes(rgba)), tensor_of(rgba).narrow(0, 0, 3)));
  const Pixels grey = picture(6, 5, 1);
  EXPECT_TRUE(at::equal(decode(png_bytes(grey), {.channels = 1}), tensor_of(grey)));
  EXPECT_TRUE(at::equal(decode(png_bytes(grey)), tensor_of(grey).expand({3, 6, 5})));
  EXPECT_EQ(decode(png_bytes(rgba), {.channels = 1}).size(0), 1);
}

// Equality with torchvision's decoder is checked in tests/python/data_files.py.
TEST(ImageTest, JpegIsDecodedNearly) {
  const Pixels rgb = picture(40, 56);
  for (const bool progressive : {false, true}) {
    const at::Tensor image = decode(jpeg_bytes(rgb, 100, progressive));
    EXPECT_EQ(image.sizes(), (at::IntArrayRef{3, 40, 56}));
    EXPECT_LE(largest_difference(image, tensor_of(rgb)), 12);
  }
  const Pixels grey = picture(40, 56, 1);
  EXPECT_LE(largest_difference(decode(jpeg_bytes(grey, 100), {.channels = 1}), tensor_of(grey)), 2);
}

TEST(ImageTest, FourInksBecomeColours) {
  Pixels inks = picture(16, 16, 4);
  for (size_t i = 3; i < inks.values.size(); i += 4) inks.values[i] = 255;  // inverted: no black
  const at::Tensor image = decode(jpeg_bytes(inks, 100));
  const at::Tensor expected = tensor_of(inks).narrow(0, 0, 3);
  EXPECT_LE(largest_difference(image, expected), 8);
}

TEST(ImageTest, JpegIsDecodedAtReducedScaleWhereThatIsLargeEnough) {
  const std::string bytes = jpeg_bytes(picture(128, 200));
  const auto size = [&](int64_t height, int64_t width) {
    return decode(bytes, {.least_height = height, .least_width = width}).sizes().vec();
  };
  EXPECT_THAT(size(16, 25), ElementsAre(3, 16, 25));
  EXPECT_THAT(size(17, 20), ElementsAre(3, 32, 50));
  EXPECT_THAT(size(64, 51), ElementsAre(3, 64, 100));
  EXPECT_THAT(size(65, 10), ElementsAre(3, 128, 200));
  EXPECT_THAT(size(500, 500), ElementsAre(3, 128, 200));
  EXPECT_THAT(size(0, 0), ElementsAre(3, 128, 200));
}

TEST(ImageTest, OtherFormatsAndDamageSayWhatIsWrong) {
  EXPECT_EQ(refused("GIF89a.."),
            "got 8 bytes that begin with 47 49 46 38 39 61 2e 2e, expected a JPEG (ff d8 ff) or a "
            "PNG (89 50 4e 47) file");
  EXPECT_THAT(refused(""), HasSubstr("got 0 bytes"));
  const std::string jpeg = jpeg_bytes(picture(40, 56));
  EXPECT_THAT(refused(jpeg.substr(0, jpeg.size() / 2)),
              AllOf(StartsWith("JPEG: "), HasSubstr("end")));
  EXPECT_THAT(refused(jpeg.substr(0, 100)), StartsWith("JPEG: "));
  const std::string png = png_bytes(picture(40, 56));
  EXPECT_EQ(refused(png.substr(0, png.size() / 2)), "PNG: the data end early");
  std::string flipped = png;
  flipped[png.size() / 2] ^= 1;
  EXPECT_THAT(refused(flipped), StartsWith("PNG: IDAT: "));
  EXPECT_THROW(decode(png, {.channels = 2}), ValueError);
}

TEST(ImageTest, HugeClaimIsRefusedWithoutMemory) {
  std::string jpeg = jpeg_bytes(picture(8, 8));
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  for (const size_t at : {5, 7}) jpeg[frame + at] = '\xfe';  // height, width
  std::string png = png_bytes(picture(8, 8));
  png[18] = '\x0f';
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_THAT(refused(jpeg), HasSubstr("got an image of 65032 x 65032 pixels, expected 1 to"));
  EXPECT_THAT(refused(png), StartsWith("PNG: "));
  EXPECT_EQ(refused(png_bytes(picture(8, 9)), {.most_pixels = 71}),
            "got an image of 9 x 8 pixels, expected 1 to 71 in all");
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 4096) << "KiB";
}

TEST(ImageTest, DamagedFilesAreReadOrRefused) {
  const auto read = [](const std::filesystem::path& path) {
    read_image(path, {.most_pixels = 1 << 20});
  };
  for (const bool progressive : {false, true}) {
    const auto counts =
        test::read_damaged(jpeg_bytes(picture(24, 24), 60, progressive), 400, 1000, read);
    EXPECT_GT(counts.read, 50);
    EXPECT_GT(counts.refused, 200);
  }
  for (const bool interlaced : {false, true}) {
    const auto counts =
        test::read_damaged(png_bytes(picture(12, 12), 8, interlaced), 60, 1000, read);
    EXPECT_GT(counts.read, 50);
    EXPECT_GT(counts.refused, 400);
  }
}

class ImageFolderTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    folder_.write(name, bytes);
  }
  std::string path_of(const std::string& name) const { return (folder_.path() / name).string(); }
  TemporaryFolder folder_;
};

TEST_F(ImageFolderTest, ClassesAndFilesComeInSortedOrder) {
  write("dog/b.PNG", png_bytes(picture(4, 6, 3, 1)));
  write("dog/a.jpeg", jpeg_bytes(picture(8, 8)));
  write("dog/notes.txt", "no image");
  write("cat/x/deep.png", png_bytes(picture(4, 4, 3, 2)));
  write("cat/z.png", png_bytes(picture(4, 4, 3, 3)));
  const ImageFolder folder(folder_.path());
  EXPECT_THAT(folder.classes(), ElementsAre("cat", "dog"));
  ASSERT_EQ(folder.size(), 4);
  EXPECT_EQ(folder.source(0), path_of("cat/z.png"));
  EXPECT_EQ(folder.source(1), path_of("cat/x/deep.png"));
  EXPECT_EQ(folder.source(2), path_of("dog/a.jpeg"));
  EXPECT_EQ(folder.source(3), path_of("dog/b.PNG"));
  EXPECT_EQ(folder.class_of(1), 0);
  const Tree sample = folder.get(3);
  EXPECT_TRUE(at::equal(sample[0].tensor(), tensor_of(picture(4, 6, 3, 1))));
  EXPECT_EQ(sample[1].integer(), 1);
  EXPECT_THROW(folder.get(4), ValueError);
}

TEST_F(ImageFolderTest, ADamagedImageIsNamedByTheLoader) {
  for (int i = 0; i < 4; ++i)
    write("c/" + std::to_string(i) + ".png", png_bytes(picture(4, 4, 3, i)));
  write("c/2.png", png_bytes(picture(4, 4)).substr(0, 60));
  const auto loader =
      make_loader(std::make_shared<ImageFolder>(folder_.path()),
                  std::make_shared<SequentialSampler>(4), {.batch_size = 2, .workers = 2});
  EXPECT_EQ(loader->next()->data[0].tensor().sizes(), (at::IntArrayRef{2, 3, 4, 4}));
  EXPECT_EQ(message_of<SampleError>([&] { loader->next(); }),
            "sample 2: " + path_of("c/2.png") + ": PNG: the data end early");
}

TEST_F(ImageFolderTest, FoldersThatCannotServeAreRefused) {
  EXPECT_THAT(message_of<EnvironmentError>([&] { ImageFolder{folder_.path()}; }),
              HasSubstr("got no folders, expected one for each class"));
  write("a/1.png", png_bytes(picture(2, 2)));
  write("b/readme", "");
  EXPECT_THAT(message_of<EnvironmentError>([&] { ImageFolder{folder_.path()}; }),
              StartsWith(path_of("b") + ": got no image in this class"));
  EXPECT_EQ(message_of<FileError>([&] { ImageFolder{folder_.path() / "absent"}; }),
            path_of("absent") + ": list: No such file or directory");
  std::filesystem::remove_all(folder_.path() / "b");
  std::filesystem::create_directory_symlink(folder_.path() / "a", folder_.path() / "a/again");
  EXPECT_THAT(message_of<EnvironmentError>([&] { ImageFolder{folder_.path()}; }),
              HasSubstr("a/again: is a link back to "));
}

TEST_F(ImageFolderTest, PipesAndDevicesAreRefusedAtOnce) {
  write("a/1.png", png_bytes(picture(2, 2)));
  ASSERT_EQ(::mkfifo(path_of("a/2.jpg").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", path_of("a/3.png"));
  const ImageFolder folder(folder_.path());
  ASSERT_EQ(folder.size(), 3);
  EXPECT_NO_THROW(folder.get(0));
  for (const int64_t index : {1, 2}) {
    EXPECT_EQ(message_of<EnvironmentError>([&] { folder.get(index); }),
              folder.source(index) + ": is a pipe or a device, expected a regular file");
  }
}

// 1,000,000 files at this rate are 28 MB.
TEST_F(ImageFolderTest, AFileTakesLessThanOneHundredBytes) {
  constexpr int64_t kFiles = 1000;
  for (const char* name : {"n01440764", "n02099712"}) {
    std::filesystem::create_directories(folder_.path() / name);
    for (int64_t i = 0; i < kFiles / 2; ++i)
      std::ofstream(folder_.path() / name /
                    (std::string(name) + "_" + std::to_string(10000 + i) + ".JPEG"));
  }
  const ImageFolder folder(folder_.path());
  EXPECT_EQ(folder.size(), kFiles);
  EXPECT_LT(folder.index_bytes(), kFiles * 100u);
  EXPECT_LT(folder.index_bytes(), kFiles * (20 + 8) + 1000u);  // name, and 8 bytes
}

}  // namespace
}  // namespace bellows::data
