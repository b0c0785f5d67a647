#include "bellows/data/csv.h"

#include <cmath>
#include <gmock/gmock.h>
#include <string>

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "tests/data/damage.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::message_of;
using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CsvTest : public ::testing::Test {
 protected:
  CsvTable read(const std::string& text, CsvOptions options = {}) const {
    return read_csv(folder_.write("file", text), options);
  }
  std::string refused(const std::string& text, CsvOptions options = {}) const {
    const auto path = folder_.write("file", text);
    const std::string message = message_of<CorruptFileError>([&] { read_csv(path, options); });
    EXPECT_THAT(message, StartsWith(path.string() + ": "));
    return message.substr(std::min(message.size(), path.string().size() + 2));
  }
  TemporaryFolder folder_;
};

TEST_F(CsvTest, NumbersOfEveryForm) {
  const CsvTable table = read("a,b,c\n1,-2.5,+3e2\n 4 ,inf,\"5\"\n");
  EXPECT_THAT(table.columns, ElementsAre("a", "b", "c"));
  EXPECT_TRUE(at::equal(
      table.values, at::tensor({1.0, -2.5, 300.0, 4.0, HUGE_VAL, 5.0}, at::kDouble).view({2, 3})));
}

TEST_F(CsvTest, LineEndsQuotesMarksAndSeparators) {
  const at::Tensor expected = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble).view({2, 2});
  EXPECT_TRUE(at::equal(read("x,y\r\n1,2\r\n3,4").values, expected));
  EXPECT_TRUE(at::equal(read("\xef\xbb\xbf\"x,\"\"\ny\",z\n1,2\n3,4\n\n").values, expected));
  EXPECT_THAT(read("\"x,\"\"\ny\",z\n1,2\n").columns, ElementsAre("x,\"\ny", "z"));
  EXPECT_TRUE(at::equal(read("1;2\n3;4\n", {.separator = ';', .header = false}).values, expected));
  EXPECT_TRUE(at::equal(read(test::gzip("x,y\n1,2\n3,4\n")).values, expected));
  EXPECT_TRUE(at::equal(read("x,y\n1,2\n3,4\n\n\r\n\n").values, expected));
  EXPECT_EQ(read("x,y\n1,\n", {.missing = -1}).values[0][1].item<double>(), -1);
}

TEST_F(CsvTest, DamageNamesLineColumnAndWhatIsWrong) {
  EXPECT_EQ(refused("a,b\n1,2\n3,x4\n"), "line 3: column b: got \"x4\", expected a number");
  EXPECT_EQ(refused("a,b\n1,\n"), "line 2: column b: got \"\", expected a number");
  EXPECT_EQ(refused("a,b\n1,2\n3\n"), "line 3: got 1 fields, expected 2");
  EXPECT_EQ(refused("a,b\n\"1\n\n2\",3\n4,5,6\n"),
            "line 2: column a: got \"1??2\", expected a number");
  EXPECT_EQ(refused("a,\"b\n1,2\n"),
            "line 1: got the end of the file inside of quotes, expected a closing one");
  EXPECT_EQ(refused("a,b\n\"1\"2,3\n"),
            "line 2: got text after a closing quote, expected a separator or the line's end");
  EXPECT_EQ(refused("a\n1e999\n"), "line 2: column a: got 1e999, out of range of a double");
  for (const std::string text : {"+-5", "++5", "-+5", "+", "--5"})
    EXPECT_EQ(refused("a\n" + text + "\n"),
              "line 2: column a: got \"" + text + "\", expected a number");
  EXPECT_EQ(refused("a,t,\"t\"\n1,2,3\n"),
            "line 1: got the column \"t\" twice, expected each name once");
  EXPECT_EQ(refused("a,b\n1,2\n\n3,4\n"), "line 3: got 1 fields, expected 2");
  EXPECT_EQ(refused("a,b\n"), "got 1 lines, expected a header and at least one row");
  EXPECT_EQ(refused("", {.header = false}), "got 0 lines, expected at least one row");
}

TEST_F(CsvTest, LineNumbersCountLinesInsideQuotes) {
  EXPECT_EQ(refused("\"a\n\",b\n1,2\n1,z\n"), "line 4: column b: got \"z\", expected a number");
}

TEST_F(CsvTest, DatasetSplitsOffTheTarget) {
  const auto path = folder_.write("file", "x,class,y\n1,0,2\n3,1,4\n");
  const TensorDataset dataset = read_csv_dataset(path, "class");
  EXPECT_TRUE(at::equal(dataset.get(1)[0].tensor(), at::tensor({3.0, 4.0}, at::kFloat)));
  EXPECT_EQ(dataset.get(1)[1].tensor().scalar_type(), at::kLong);
  EXPECT_EQ(dataset.get(1)[1].tensor().item<int64_t>(), 1);
  EXPECT_THAT(message_of<ValueError>([&] { read_csv_dataset(path, "clas"); }),
              HasSubstr("did you mean class?"));
  const auto real = folder_.write("real", "x,t\n1,0.5\n");
  EXPECT_EQ(read_csv_dataset(real, "t").get(0)[1].tensor().scalar_type(), at::kFloat);
  const auto large = folder_.write("large", "x,t\n1,0\n-1e39,1\n");
  EXPECT_EQ(
      message_of<CorruptFileError>([&] { read_csv_dataset(large, "t"); }),
      large.string() + ": row 2 below the header: column x: got -1e+39, out of range of a float32");
  EXPECT_THROW(read_csv_dataset(folder_.write("target", "x,t\n1,1e39\n"), "t"), CorruptFileError);
  const auto infinite = folder_.write("infinite", "x,t\n-inf,0\n3e38,1\n");
  EXPECT_EQ(read_csv_dataset(infinite, "t").get(0)[0].tensor().item<float>(), -HUGE_VALF);
  const auto lone = folder_.write("lone", "t\n1\n");
  EXPECT_THROW(read_csv_dataset(lone, "t"), ValueError);
}

TEST_F(CsvTest, DamagedFilesAreReadOrRefused) {
  const std::string good = "a,\"b\",c\n1,2,3\n4.5,-6e7,\"8\"\n9,10,11\n";
  const auto read = [](const std::filesystem::path& path) { read_csv(path); };
  const auto plain = test::read_damaged(good, 30, 1500, read);
  EXPECT_GT(plain.read, 100);
  EXPECT_GT(plain.refused, 300);
  EXPECT_GT(test::read_damaged(test::gzip(good), 30, 500, read).refused, 200);
}

}  // namespace
}  // namespace bellows::data
