#include "bellows/data/tar_stream.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <map>
#include <set>
#include <string>
#include <sys/stat.h>

#include <gtest/gtest.h>

#include "bellows/core/file.h"
#include "bellows/data/loader.h"
#include "bellows/data/tar_file.h"
#include "tests/data/damage.h"
#include "tests/data/image_files.h"
#include "tests/data/support.h"

namespace bellows::data {
namespace {

using test::message_of;
using test::tar_bytes;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Batches = std::vector<std::vector<int64_t>>;

std::vector<std::vector<int64_t>> classes(Loader& loader) {
  Batches batches;
  while (const auto batch = loader.next()) {
    const at::Tensor& tensor = batch->data[0].tensor();
    const auto* data = tensor.const_data_ptr<int64_t>();
    batches.emplace_back(data, data + batch->samples);
  }
  return batches;
}

class TarStreamTest : public ::testing::Test {
 protected:
  // Shards of `sizes` samples "0007.cls" with running numbers as content.
  std::vector<std::filesystem::path> shards(const std::vector<int>& sizes) const {
    std::vector<std::filesystem::path> paths;
    int number = 0;
    for (size_t s = 0; s < sizes.size(); ++s) {
      std::vector<std::pair<std::string, std::string>> files;
      for (int i = 0; i < sizes[s]; ++i, ++number) {
        files.emplace_back(std::to_string(number) + ".cls", std::to_string(number) + "\n");
        files.emplace_back(std::to_string(number) + ".txt", "text");
      }
      paths.push_back(folder_.write("shard-" + std::to_string(s) + ".tar", tar_bytes(files)));
    }
    return paths;
  }
  std::unique_ptr<Loader> loader(const std::vector<std::filesystem::path>& paths,
                                 TarOptions options, LoaderOptions loading) const {
    options.fields = {"cls"};
    return make_loader(std::make_shared<TarStream>(paths, options), loading);
  }
  TemporaryFolder folder_;
};

TEST_F(TarStreamTest, FilesOfOneNameAreOneSample) {
  const auto path = folder_.write(
      "shard.tar", tar_bytes({{"a/b.c/1.jpg", test::jpeg_bytes(test::picture(8, 9))},
                              {"a/b.c/1.CLS", "7"},
                              {"a/b.c/2.seg.png", test::png_bytes(test::picture(3, 4))},
                              {"a/b.c/2.json", "{}"}}));
  const TarStream stream({path}, {});
  EXPECT_EQ(stream.size(), 2);
  const auto reader = stream.open({}, 0);
  const Tree first = stream.decode(*reader->next(), {});
  EXPECT_EQ(first.at("__key__").string(), "a/b.c/1");
  EXPECT_EQ(first.at("jpg").tensor().sizes(), (at::IntArrayRef{3, 8, 9}));
  EXPECT_EQ(first.at("cls").integer(), 7);
  Record record = *reader->next();
  EXPECT_EQ(record.source, path.string() + ": a/b.c/2");
  EXPECT_EQ(record.index, 1);
  const Tree second = stream.decode(std::move(record), {});
  EXPECT_EQ(second.at("seg.png").tensor().sizes(), (at::IntArrayRef{3, 3, 4}));
  EXPECT_EQ(second.at("json").string(), "{}");
  EXPECT_FALSE(reader->next());
}

TEST_F(TarStreamTest, FieldsMakeAListAndMissingOnesAreNamed) {
  const auto path =
      folder_.write("shard.tar", tar_bytes({{"1.png", test::png_bytes(test::picture(2, 2))},
                                            {"1.cls", "3"},
                                            {"2.cls", "x4"},
                                            {"2.jpg", "no image"},
                                            {"3.cls", "5"}}));
  const TarStream stream({path}, {.fields = {"jpg;png", "cls"}});
  const auto reader = stream.open({}, 0);
  const Tree sample = stream.decode(*reader->next(), {});
  EXPECT_EQ(sample[0].tensor().sizes(), (at::IntArrayRef{3, 2, 2}));
  EXPECT_EQ(sample[1].integer(), 3);
  const Record bad = *reader->next();
  EXPECT_THAT(message_of<EnvironmentError>([&] { stream.decode(bad, {}); }),
              StartsWith(path.string() + ": 2.jpg: got 8 bytes that begin with"));
  const TarStream labels({path}, {.fields = {"cls"}});
  EXPECT_EQ(message_of<EnvironmentError>([&] { labels.decode(bad, {}); }),
            path.string() + ": 2.cls: got \"x4\", expected an integer");
  const Record incomplete = *reader->next();
  EXPECT_EQ(message_of<EnvironmentError>([&] { stream.decode(incomplete, {}); }),
            path.string() + ": 3: got the parts cls, expected one of jpg, png");
}

TEST_F(TarStreamTest, ShardsComeOneAfterTheOtherAlsoCompressed) {
  const auto paths = shards({3, 0, 4});
  EXPECT_EQ(classes(*loader(paths, {}, {.batch_size = 4})), (Batches{{0, 1, 2, 3}, {4, 5, 6}}));
  const auto packed = folder_.write("packed.tar.gz", test::gzip(read_file(paths[2])));
  const TarStream both({paths[0], packed}, {});
  EXPECT_THAT(both.counts(), ElementsAre(3, 4));
  EXPECT_EQ(classes(*loader({paths[0], packed}, {.counts = {3, 4}}, {.batch_size = 7})),
            (Batches{{0, 1, 2, 3, 4, 5, 6}}));
}

TEST_F(TarStreamTest, ShuffledEpochsDifferRepeatAndLoseNothing) {
  const auto paths = shards({20, 15, 25});
  const auto epoch = [&](int64_t number, uint64_t seed, int64_t buffer) {
    const auto all = loader(paths, {.shuffle = true, .shuffle_buffer = buffer, .seed = seed},
                            {.batch_size = 60});
    all->start(number);
    return classes(*all).at(0);
  };
  const auto first = epoch(0, 1, 10);
  EXPECT_EQ(epoch(0, 1, 10), first);
  EXPECT_NE(epoch(1, 1, 10), first);
  EXPECT_NE(epoch(0, 2, 10), first);
  auto sorted = first;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, SequentialSampler(60).indices(0));
  // With a buffer of 1 only the shards change places.
  std::set<int64_t> starts;
  for (int64_t number = 0; number < 12; ++number) starts.insert(epoch(number, 1, 1).at(0));
  EXPECT_THAT(starts, ElementsAre(0, 20, 35));
}

TEST_F(TarStreamTest, AnyNumberOfWorkersAndAnyStartGiveTheSame) {
  const auto paths = shards({20, 15, 25});
  const TarOptions options{.shuffle = true, .shuffle_buffer = 8, .seed = 3};
  const auto reference = loader(paths, options, {.batch_size = 7});
  reference->start(2);
  const Batches expected = classes(*reference);
  for (const int64_t workers : {0, 1, 3}) {
    for (int64_t first = 0; first <= 9; ++first) {
      const auto other = loader(paths, options, {.batch_size = 7, .workers = workers});
      other->start(2, first);
      EXPECT_EQ(classes(*other), Batches(expected.begin() + first, expected.end()));
    }
  }
}

TEST_F(TarStreamTest, RanksShareEachStepWhateverTheirNumber) {
  const auto paths = shards({20, 15, 25});
  const auto steps = [&](int64_t ranks, Uneven uneven) {
    std::vector<std::multiset<int64_t>> result;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto mine =
          loader(paths, {.shuffle = true, .shuffle_buffer = 8, .ranks = {rank, ranks, uneven}},
                 {.batch_size = 12 / ranks});
      const Batches batches = classes(*mine);
      result.resize(std::max(result.size(), batches.size()));
      for (size_t b = 0; b < batches.size(); ++b)
        result[b].insert(batches[b].begin(), batches[b].end());
    }
    return result;
  };
  const auto one = steps(1, Uneven::drop);
  EXPECT_EQ(one.size(), 5u);
  for (const auto uneven : {Uneven::drop, Uneven::keep, Uneven::pad}) {
    EXPECT_EQ(steps(2, uneven), one);
    EXPECT_EQ(steps(4, uneven), one);
  }
  // 8 ranks do not divide 60: some come twice, or are left out.
  const auto count = [&](Uneven uneven) {
    size_t samples = 0;
    for (int64_t rank = 0; rank < 8; ++rank) {
      for (const auto& batch : classes(*loader(paths, {.ranks = {rank, 8, uneven}}, {})))
        samples += batch.size();
    }
    return samples;
  };
  EXPECT_EQ(count(Uneven::drop), 56u);
  EXPECT_EQ(count(Uneven::keep), 60u);
  EXPECT_EQ(count(Uneven::pad), 64u);
}

TEST_F(TarStreamTest, StateFitsAnotherNumberOfRanksAndRefusesOtherShards) {
  const auto paths = shards({20, 16});
  const auto before = loader(paths, {.ranks = {0, 2}}, {.batch_size = 6});
  before->next();
  const auto after = loader(paths, {}, {.batch_size = 12});
  after->load_state_dict(before->state_dict());
  EXPECT_EQ(classes(*after).at(0).at(0), 12);
  const auto other = loader(shards({16, 20}), {}, {.batch_size = 12});
  EXPECT_THAT(message_of<ValueError>([&] { other->load_state_dict(before->state_dict()); }),
              HasSubstr("the sampler's order of epoch 0 is not the one"));
}

TEST_F(TarStreamTest, DamagedShardsNameFileEntryAndWhatIsWrong) {
  const std::string good = tar_bytes({{"1.cls", "1"}, {"2.cls", std::string(700, ' ') + "2"}});
  const auto refused = [&](const std::string& bytes) {
    const auto path = folder_.write("shard.tar", bytes);
    const std::string message = message_of<CorruptFileError>([&] {
      TarFile file(path);
      while (file.next()) continue;
    });
    EXPECT_THAT(message, StartsWith(path.string() + ": "));
    return message.substr(path.string().size() + 2);
  };
  EXPECT_THAT(
      refused(good.substr(0, 512 + 512 + 512 + 100)),
      AllOf(StartsWith("entry 1 (2.cls): got "), HasSubstr("expected 701"), HasSubstr("runcated")));
  EXPECT_EQ(refused(good.substr(0, 1024)),
            "entry 0 (1.cls): got no end-of-archive mark (1024 bytes of 0) after it: cut off");
  std::string flipped = good;
  flipped[1024 + 20] ^= 1;
  EXPECT_THAT(refused(flipped), StartsWith("entry 0 (1.cls): got no whole archive after it: "));
  EXPECT_THAT(refused("this is no archive"), StartsWith("at its begin: "));
  EXPECT_THAT(refused(""), StartsWith("at its begin: "));
  EXPECT_EQ(refused(tar_bytes({{"1.cls", "1"}, {"1.cls", "2"}})),
            "entry 1 (1.cls): got a second file of this name, expected each once");
  const auto path = folder_.write("shard.tar", good);
  EXPECT_EQ(message_of<CorruptFileError>([&] {
              TarFile file(path, 700);
              while (file.next()) continue;
            }),
            path.string() + ": entry 1 (2.cls): got a size of 701 bytes, expected at most 700");
  EXPECT_THROW(TarFile{folder_.path() / "absent"}, FileError);
  EXPECT_THROW(TarFile{folder_.path()}, FileError);
}

TEST_F(TarStreamTest, CompressedShardsAreChecked) {
  const std::string good = tar_bytes({{"1.cls", "1"}, {"2.txt", std::string(700, 'x')}});
  const auto read = [&](const std::string& bytes) {
    const auto path = folder_.write("shard.tar.gz", bytes);
    TarFile file(path);
    int samples = 0;
    while (file.next()) ++samples;
    TarFile again(path);
    while (again.skip()) --samples;
    EXPECT_EQ(samples, 0);
  };
  const auto refused = [&](const std::string& bytes) {
    return message_of<CorruptFileError>([&] { read(bytes); });
  };
  const std::string packed = test::gzip(good);
  read(packed);
  // A member's last eight bytes are its checksum and size.
  for (const size_t place : {packed.size() - 8, packed.size() - 1}) {
    std::string flipped = packed;
    flipped[place] ^= 1;
    EXPECT_THAT(refused(flipped), HasSubstr("the gzip data are damaged: incorrect "));
  }
  EXPECT_THAT(refused(packed.substr(0, packed.size() - 3)), HasSubstr("the gzip data are cut off"));
  EXPECT_THAT(refused(packed.substr(0, packed.size() / 2)), HasSubstr("the gzip data are cut off"));
  EXPECT_THAT(refused(test::gzip(good.substr(0, 1024))),
              HasSubstr("entry 0 (1.cls): got no end-of-archive mark (1024 bytes of 0)"));
}

TEST_F(TarStreamTest, NothingButZerosFollowsTheEnd) {
  const std::string one = tar_bytes({{"1.cls", "1"}}), two = tar_bytes({{"2.cls", "2"}});
  const auto read = [&](const std::string& bytes) {
    TarFile file(folder_.write("shard.tar", bytes));
    while (file.skip()) continue;
  };
  read(one + std::string(20000, '\0'));
  const auto refused = [&](const std::string& bytes) {
    return message_of<CorruptFileError>([&] { read(bytes); });
  };
  for (const auto& bytes : {one + two, one + std::string(600000, '\0') + "x", test::gzip(one + two),
                            test::gzip(one) + test::gzip(two)}) {
    EXPECT_THAT(refused(bytes), AllOf(HasSubstr("entry 0 (1.cls): got data up to byte "),
                                      HasSubstr("are these several archives in one file?")));
  }
}

// An entry of GNU tar's sparse format, of `size` bytes: "data" at byte 512, holes around it.
std::string sparse_entry(const std::string& name, size_t size) {
  const auto octal = [](size_t number) {
    std::string digits(11, '0');
    for (auto digit = digits.rbegin(); number > 0; number /= 8, ++digit)
      *digit = static_cast<char>('0' + number % 8);
    return digits;
  };
  std::string header(512, '\0');
  const auto put = [&](size_t place, const std::string& text) {
    header.replace(place, text.size(), text);
  };
  put(0, name);
  put(100, "0000644");
  put(124, octal(4));
  put(136, octal(0));
  put(148, "        S");
  put(257, "ustar  ");
  put(386, octal(512));
  put(398, octal(4));
  put(410, octal(size));
  put(422, octal(0));
  put(483, octal(size));
  size_t sum = 0;
  for (const unsigned char c : header) sum += c;
  put(148, octal(sum).substr(5) + '\0');
  return header + "data" + std::string(508, '\0');
}

TEST_F(TarStreamTest, SparseFilesMayEndInAHole) {
  const auto path =
      folder_.write("shard.tar", sparse_entry("1.bin", 5000) + tar_bytes({{"2.txt", "after it"}}));
  TarFile file(path);
  EXPECT_EQ(file.next()->parts.at("bin"),
            std::string(512, '\0') + "data" + std::string(5000 - 516, '\0'));
  EXPECT_EQ(file.next()->parts.at("txt"), "after it");
  EXPECT_FALSE(file.next());
}

TEST(ShardNameTest, EndsInTarOrInTarCompressed) {
  for (const char* name : {"a.tar", "train-000.tar.gz", "x/a.tar.zst", "a.tar.bz2", "a.tar.xz",
                           "a.tar.lz4", "a.tgz", "a.b.tar", "a.txz"}) {
    EXPECT_TRUE(is_shard_name(name)) << name;
  }
  for (const char* name : {"my.target.csv", "readme.targets.txt", "train-0.tar.bak", "a.tar.md5",
                           "a.tar.tmp", "x.tar/a.csv", "tar", ".tar", "a.tar.", "a.gz", ""}) {
    EXPECT_FALSE(is_shard_name(name)) << name;
  }
}

TEST_F(TarStreamTest, PipesAndDevicesAreRefusedAtOnce) {
  const auto pipe = folder_.path() / "pipe.tar", device = folder_.path() / "device.tar";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", device);
  for (const auto& path : {pipe, device}) {
    EXPECT_EQ(message_of<EnvironmentError>([&] { TarFile{path}; }),
              path.string() + ": is a pipe or a device, expected a regular file");
  }
}

TEST_F(TarStreamTest, WrongCountsAreNoticed) {
  const auto paths = shards({3});
  EXPECT_EQ(message_of<CorruptFileError>(
                [&] { classes(*loader(paths, {.counts = {4}}, {.batch_size = 4})); }),
            paths[0].string() +
                ": got 3 samples, expected as many as were counted; was the shard replaced?");
  EXPECT_THAT(message_of<CorruptFileError>(
                  [&] { classes(*loader(paths, {.counts = {2}}, {.batch_size = 2})); }),
              HasSubstr("got more samples than the 2 that were counted"));
  EXPECT_THROW(TarStream(paths, {.counts = {1, 2}}), ValueError);
  EXPECT_THROW(TarStream(paths, {.shuffle_buffer = 0}), ValueError);
  EXPECT_THROW(TarStream({}, {}), ValueError);
}

TEST_F(TarStreamTest, DamagedFilesAreReadOrRefused) {
  const std::string good =
      tar_bytes({{"1.cls", "1"}, {"1.txt", "some text"}, {"2.cls", std::string(900, '2')}});
  const auto read = [](const std::filesystem::path& path) {
    TarFile file(path, 1 << 20);
    while (file.next()) continue;
  };
  const auto plain = test::read_damaged(good, 1024, 1000, read);
  EXPECT_GT(plain.read, 50);
  EXPECT_GT(plain.refused, 300);
  EXPECT_GT(test::read_damaged(test::gzip(good), 60, 500, read).refused, 200);
}

}  // namespace
}  // namespace bellows::data
