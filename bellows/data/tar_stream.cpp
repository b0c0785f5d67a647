#include "bellows/data/tar_stream.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/npy.h"
#include "bellows/data/order_hash.h"
#include "bellows/data/tar_file.h"

namespace bellows::data {
namespace {

// Streams of random numbers beside those of the samples, which have indices of 0 and more.
constexpr int64_t kShardNumbers = -1;
constexpr int64_t kBufferNumbers = -2;

bool is_image_ending(const std::string& ending) {
  return ending == "jpg" || ending == "jpeg" || ending == "png";
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

int64_t integer(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ' || text.back() == '\r'))
    text.remove_suffix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty())
    throw EnvironmentError(concat("got \"", text.substr(0, 40), "\", expected an integer"));
  return value;
}

// In what order a buffer of `size` gives out `total` values that come in order.
std::vector<int64_t> through_buffer(int64_t total, int64_t size, Random random) {
  std::vector<int64_t> order, buffer;
  order.reserve(static_cast<size_t>(total));
  const auto give = [&](int64_t coming) {
    const auto place = static_cast<size_t>(random.below(std::ssize(buffer)));
    order.push_back(buffer[place]);
    if (coming >= 0) {
      buffer[place] = coming;
    } else {
      buffer[place] = buffer.back();
      buffer.pop_back();
    }
  };
  for (int64_t value = 0; value < total; ++value) {
    if (std::ssize(buffer) < size) {
      buffer.push_back(value);
    } else {
      give(value);
    }
  }
  while (!buffer.empty()) give(-1);
  return order;
}

// An order that is written down.
class Fixed : public Sampler {
 public:
  explicit Fixed(std::vector<int64_t> order) : order_(std::move(order)) {}
  int64_t size() const override { return std::ssize(order_); }
  std::vector<int64_t> indices(int64_t) const override { return order_; }

 private:
  std::vector<int64_t> order_;
};

std::vector<int64_t> count_all(const std::vector<std::filesystem::path>& shards,
                               int64_t most_bytes) {
  std::vector<int64_t> counts;
  for (const auto& path : shards) {
    TarFile file(path, most_bytes);
    counts.push_back(0);
    while (file.skip()) ++counts.back();
  }
  return counts;
}

void check(const std::vector<std::filesystem::path>& shards, const TarOptions& options) {
  const auto fail = [](const auto&... what) { throw ValueError(concat("tar shards: ", what...)); };
  if (shards.empty()) fail("got none, expected at least one");
  if (options.shuffle_buffer < 1)
    fail("got a shuffle buffer of ", options.shuffle_buffer, ", expected at least 1");
  if (!options.counts.empty() && options.counts.size() != shards.size()) {
    fail("got ", options.counts.size(), " counts for ", shards.size(),
         " shards, expected one for each");
  }
  if (std::any_of(options.counts.begin(), options.counts.end(), [](int64_t n) { return n < 0; }))
    fail("got a negative count");
}

}  // namespace

// The order of one epoch: shards, and positions in their samples laid end to end in that order.
class TarStream::Order {
 public:
  Order(const TarStream& stream, int64_t epoch) {
    const auto& counts = stream.options_.counts;
    shards.resize(counts.size());
    std::iota(shards.begin(), shards.end(), size_t{0});
    const TarOptions& options = stream.options_;
    if (options.shuffle) {
      Random random(options.seed, epoch, kShardNumbers);
      for (auto left = std::ssize(shards); left > 1; --left) {
        std::swap(shards[static_cast<size_t>(left - 1)],
                  shards[static_cast<size_t>(random.below(left))]);
      }
    }
    const int64_t buffer = options.shuffle ? options.shuffle_buffer : 1;
    positions = through_buffer(stream.total_, buffer, Random(options.seed, epoch, kBufferNumbers));
  }

  std::vector<size_t> shards;
  std::vector<int64_t> positions;  // as they come out, of all ranks
};

class TarStream::Reader : public RecordReader {
 public:
  Reader(const TarStream& stream, int64_t epoch, int64_t first) : stream_(stream) {
    Order order(stream, epoch);
    shards_ = std::move(order.shards);
    const auto all = std::make_shared<Fixed>(std::move(order.positions));
    mine_ = DistributedSampler(all, stream.options_.ranks).indices(epoch);
    mine_.erase(mine_.begin(), mine_.begin() + first);
    wanted_.insert(mine_.begin(), mine_.end());
    first_index_.resize(stream.shards_.size());
    const auto& counts = stream.options_.counts;
    std::exclusive_scan(counts.begin(), counts.end(), first_index_.begin(), int64_t{0});
  }

  std::optional<Record> next() override {
    if (given_ == mine_.size()) return std::nullopt;
    const int64_t position = mine_[given_];
    while (!loaded_.contains(position)) read_one();
    ++given_;
    Record record = std::move(loaded_.extract(position).mapped());
    return record;
  }

 private:
  // Reads the sample at `position_`, or skips it where nobody wants it.
  void read_one() {
    while (!file_ || left_ == 0) next_shard();
    const size_t shard = shards_[shard_ - 1];
    const auto& path = stream_.shards_[shard];
    const int64_t place = stream_.options_.counts[shard] - left_;
    if (!wanted_.contains(position_)) {
      if (!file_->skip()) fail_count(path, place);
    } else {
      auto sample = file_->next();
      if (!sample) fail_count(path, place);
      loaded_.emplace(position_, record_of(std::move(*sample), path, first_index_[shard] + place));
    }
    ++position_;
    if (--left_ == 0 && file_->skip()) {
      throw CorruptFileError(path,
                             concat("got more samples than the ", stream_.options_.counts[shard],
                                    " that were counted; was the shard replaced?"));
    }
  }

  void next_shard() {
    const size_t shard = shards_.at(shard_++);
    left_ = stream_.options_.counts[shard];
    file_ = std::make_unique<TarFile>(stream_.shards_[shard], stream_.options_.most_part_bytes);
  }

  [[noreturn]] static void fail_count(const std::filesystem::path& path, int64_t got) {
    throw CorruptFileError(path, concat("got ", got,
                                        " samples, expected as many as were counted; was the shard "
                                        "replaced?"));
  }

  static Record record_of(TarSample sample, const std::filesystem::path& path, int64_t index) {
    Tree::Dict parts;
    const std::string source = concat(path.string(), ": ", sample.key);
    for (auto& [ending, bytes] : sample.parts) parts.emplace(ending, std::move(bytes));
    parts.emplace("__key__", std::move(sample.key));
    return {std::move(parts), index, source};
  }

  const TarStream& stream_;
  std::vector<size_t> shards_;
  std::vector<int64_t> first_index_;  // by shard, in the order they were given in
  std::vector<int64_t> mine_;         // positions still to be given, in order
  size_t given_ = 0;
  std::unordered_set<int64_t> wanted_;  // of these each once: ranks pad with others' samples
  std::unordered_map<int64_t, Record> loaded_;
  size_t shard_ = 0;
  std::unique_ptr<TarFile> file_;
  int64_t left_ = 0;  // samples of the open shard
  int64_t position_ = 0;
};

bool is_shard_name(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 10> kEndings = {
      ".tar",     ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst",
      ".tar.lz4", ".tgz",    ".tbz2",    ".txz",    ".tzst"};
  const std::string name = path.filename().string();
  return std::any_of(kEndings.begin(), kEndings.end(), [&](std::string_view ending) {
    return name.size() > ending.size() && name.ends_with(ending);
  });
}

TarStream::TarStream(std::vector<std::filesystem::path> shards, TarOptions options)
    : shards_(std::move(shards)), options_(std::move(options)) {
  check(shards_, options_);
  if (options_.counts.empty()) options_.counts = count_all(shards_, options_.most_part_bytes);
  total_ = std::accumulate(options_.counts.begin(), options_.counts.end(), int64_t{0});
  size_ = DistributedSampler(total_, options_.ranks, /*shuffle=*/false).size();
}

TarStream::~TarStream() = default;

std::unique_ptr<RecordReader> TarStream::open(const Pass& pass, int64_t first) const {
  return std::make_unique<Reader>(*this, pass.epoch, first);
}

uint64_t TarStream::order_hash(int64_t epoch) const {
  const Order order(*this, epoch);
  const std::vector<int64_t> shards(order.shards.begin(), order.shards.end());
  return hash_order(order.positions, hash_order(shards, hash_order(options_.counts)));
}

Tree TarStream::decode_part(const std::string& ending, const std::string& bytes) const {
  const auto span = std::as_bytes(std::span(bytes));
  const size_t dot = ending.rfind('.');
  const std::string last = dot == std::string::npos ? ending : ending.substr(dot + 1);
  if (is_image_ending(last)) return decode_image(span, options_.image);
  if (last == "npy") return decode_npy(span, ending);
  if (last == "cls" || last == "index") return integer(bytes);
  return bytes;
}

Tree TarStream::decode(Record record, const Pass&) const {
  const Tree::Dict& parts = record.data.dict();
  const auto decoded = [&](const std::string& ending, const Tree& bytes) -> Tree {
    try {
      return decode_part(ending, bytes.string());
    } catch (const EnvironmentError& error) {
      throw EnvironmentError(concat(record.source, ".", ending, ": ", error.what()));
    }
  };
  if (options_.fields.empty()) {
    Tree::Dict sample;
    for (const auto& [ending, bytes] : parts)
      sample.emplace(ending, ending == "__key__" ? bytes : decoded(ending, bytes));
    return sample;
  }
  Tree::List sample;
  for (const std::string& field : options_.fields) {
    const auto endings = split(field, ';');
    const auto found = std::find_if(endings.begin(), endings.end(),
                                    [&](const auto& ending) { return parts.contains(ending); });
    if (found == endings.end()) {
      std::vector<std::string> there;
      for (const auto& [ending, _] : parts) {
        if (ending != "__key__") there.push_back(ending);
      }
      throw EnvironmentError(concat(record.source, ": got the parts ", join(there),
                                    ", expected one of ", join(endings)));
    }
    sample.push_back(decoded(*found, parts.at(*found)));
  }
  return sample;
}

}  // namespace bellows::data
