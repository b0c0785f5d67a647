#include "bellows/data/tokens.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <ATen/ops/empty.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/mapped_file.h"

namespace bellows::data {

static_assert(std::endian::native == std::endian::little);

struct TokenDataset::File {
  std::filesystem::path path;
  MappedFile mapped;
  int64_t tokens;
  int64_t end;  // samples of this file and those before it
};

namespace {

int64_t token_bytes(TokenType type) {
  return type == TokenType::uint16 ? 2 : 4;
}

void check(const std::vector<std::filesystem::path>& files, const TokenOptions& options) {
  const auto fail = [](const auto&... what) { throw ValueError(concat("tokens: ", what...)); };
  if (files.empty()) fail("got no files, expected at least one");
  if (options.context < 1) fail("got context ", options.context, ", expected at least 1");
  if (options.stride < 0) fail("got stride ", options.stride, ", expected 0 (context) or more");
  if (options.vocabulary < 0)
    fail("got a vocabulary of ", options.vocabulary, ", expected 0 (not checked) or more");
}

// Widens, and gives the largest token.
template <class Token>
int64_t widen_as(const std::byte* from, int64_t count, int64_t* to) {
  Token largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    Token token;
    std::memcpy(&token, from + static_cast<size_t>(i) * sizeof(Token), sizeof(Token));
    largest = std::max(largest, token);
    to[i] = token;
  }
  return largest;
}

}  // namespace

TokenDataset::TokenDataset(const std::vector<std::filesystem::path>& files, TokenOptions options)
    : options_(options) {
  check(files, options_);
  if (options_.stride == 0) options_.stride = options_.context;
  const int64_t bytes = token_bytes(options_.type);
  files_.reserve(files.size());
  for (const auto& path : files) {
    MappedFile mapped(path);
    const auto size = static_cast<int64_t>(mapped.bytes().size());
    if (size % bytes != 0) {
      throw CorruptFileError(path, concat("got ", size, " bytes, expected a multiple of ", bytes,
                                          ", the size of a token"));
    }
    const int64_t count = size / bytes;
    if (count <= options_.context) {
      throw CorruptFileError(path, concat("got ", count, " tokens, expected at least ",
                                          options_.context + 1, " for one sample"));
    }
    size_ += (count - options_.context - 1) / options_.stride + 1;
    tokens_ += count;
    files_.push_back({path, std::move(mapped), count, size_});
  }
}

TokenDataset::~TokenDataset() = default;

TokenDataset::Place TokenDataset::place_of(int64_t index) const {
  const auto file = std::upper_bound(files_.begin(), files_.end(), index,
                                     [](int64_t i, const File& f) { return i < f.end; });
  const int64_t before = file == files_.begin() ? 0 : std::prev(file)->end;
  return {&*file, (index - before) * options_.stride};
}

void TokenDataset::widen(const Place& place, int64_t* input, int64_t* target) const {
  const int64_t bytes = token_bytes(options_.type);
  const std::byte* from = place.file->mapped.bytes().data() + place.first * bytes;
  const auto widened = options_.type == TokenType::uint16 ? widen_as<uint16_t> : widen_as<uint32_t>;
  const int64_t context = options_.context;
  const int64_t largest = std::max(widened(from, context, input),
                                   widened(from + bytes * context, 1, target + context - 1));
  std::memcpy(target, input + 1, static_cast<size_t>(context - 1) * sizeof(int64_t));
  if (options_.vocabulary == 0 || largest < options_.vocabulary) return;
  const auto bad = [&](int64_t token) { return token >= options_.vocabulary; };
  const int64_t at = bad(input[0]) ? 0 : std::find_if(target, target + context, bad) - target + 1;
  throw CorruptFileError(place.file->path, concat("token ", place.first + at, " is ",
                                                  at == 0 ? input[0] : target[at - 1],
                                                  ", expected 0 to ", options_.vocabulary - 1));
}

Tree TokenDataset::get(int64_t index) const {
  check_indices({&index, 1}, size_);
  const at::Tensor input = at::empty({options_.context}, at::kLong);
  const at::Tensor target = at::empty({options_.context}, at::kLong);
  widen(place_of(index), input.mutable_data_ptr<int64_t>(), target.mutable_data_ptr<int64_t>());
  return Tree::List{input, target};
}

Tree TokenDataset::read_batch(std::span<const int64_t> indices, const Pass&,
                              BatchMemory& memory) const {
  check_indices(indices, size_);
  const int64_t context = options_.context;
  const at::Tensor input = memory.empty({std::ssize(indices), context}, at::kLong);
  const at::Tensor target = memory.empty({std::ssize(indices), context}, at::kLong);
  auto* inputs = input.mutable_data_ptr<int64_t>();
  auto* targets = target.mutable_data_ptr<int64_t>();
  for (const int64_t index : indices) {
    try {
      widen(place_of(index), inputs, targets);
    } catch (const CorruptFileError& error) {
      std::throw_with_nested(SampleError(index, error.what()));
    }
    inputs += context;
    targets += context;
  }
  return Tree::List{input, target};
}

std::string TokenDataset::source(int64_t index) const {
  if (index < 0 || index >= size_) return {};
  const Place place = place_of(index);
  return concat(place.file->path.string(), " from token ", place.first);
}

}  // namespace bellows::data
