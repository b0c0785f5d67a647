#include "bellows/data/dataset.h"

#include <exception>
#include <vector>

#include <c10/util/Exception.h>

#include "bellows/core/text.h"

namespace bellows::data {
namespace {

std::string sample_text(int64_t index, const std::string& cause, const std::string& source) {
  const bool told = source.empty() || cause.find(source) != std::string::npos;
  return concat("sample ", index, told ? "" : concat(" (", source, ")"), ": ", cause);
}

template <class Get>
Tree named(const Dataset& dataset, int64_t index, Get get) {
  try {
    return get();
  } catch (const c10::Error& error) {
    std::throw_with_nested(
        SampleError(index, error.what_without_backtrace(), dataset.source(index)));
  } catch (const std::exception& error) {
    std::throw_with_nested(SampleError(index, error.what(), dataset.source(index)));
  } catch (...) {
    std::throw_with_nested(SampleError(index, kNoException, dataset.source(index)));
  }
}

}  // namespace

SampleError::SampleError(int64_t index, const std::string& cause, const std::string& source)
    : Error(sample_text(index, cause, source)), index_(index) {}

Tree read_sample(const Dataset& dataset, int64_t index, const Pass& pass) {
  return named(dataset, index, [&] { return dataset.read(index, pass); });
}

void check_indices(std::span<const int64_t> indices, int64_t size) {
  if (indices.empty())
    throw ValueError("dataset: got no indices, expected at least one for a batch");
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= size) {
      throw ValueError(concat("dataset: index ", indices[i], " (place ", i, " of ", indices.size(),
                              ") is out of range, expected 0 to ", size - 1));
    }
  }
}

Tree Dataset::read(int64_t index, const Pass&) const {
  return get(index);
}

Tree Dataset::get_batch(std::span<const int64_t> indices) const {
  check_indices(indices, size());
  std::vector<Tree> samples;
  samples.reserve(indices.size());
  for (const int64_t index : indices)
    samples.push_back(named(*this, index, [&] { return get(index); }));
  return collate(samples);
}

std::string Dataset::source(int64_t) const {
  return {};
}

Tree BatchDataset::get_batch(std::span<const int64_t> indices) const {
  BatchMemory memory;
  return read_batch(indices, Pass{}, memory);
}

}  // namespace bellows::data
