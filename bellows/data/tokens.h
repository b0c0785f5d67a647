// Text as a file of token numbers, read where it lies.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "bellows/data/dataset.h"

namespace bellows::data {

enum class TokenType { uint16, uint32 };

struct TokenOptions {
  TokenType type = TokenType::uint16;
  /// Tokens of a sample.
  int64_t context = 1024;
  /// From one sample's first token to the next one's; 0: context, so that no token comes twice.
  int64_t stride = 0;
  /// Tokens must lie below this; 0: not checked. Checked as they are read.
  int64_t vocabulary = 0;
};

/// Little-endian numbers one after the other, mapped: opening costs nothing, and a file may be
/// larger than memory. Sample i: the list {input, target}, int64 [context] each, the target one
/// token ahead; samples do not cross from one file to the next. A token out of the vocabulary is a
/// CorruptFileError with file, place and token. A file that becomes shorter while it is mapped ends
/// the process with SIGBUS: replace files by renaming.
class TokenDataset : public BatchDataset {
 public:
  /// Throws FileError; ValueError for no files and options out of range; CorruptFileError for a
  /// size that is no multiple of a token's, or too small for one sample.
  TokenDataset(const std::vector<std::filesystem::path>& files, TokenOptions options);
  ~TokenDataset() override;
  int64_t size() const override { return size_; }
  Tree get(int64_t index) const override;
  Tree read_batch(std::span<const int64_t> indices, const Pass& pass,
                  BatchMemory& memory) const override;
  std::string source(int64_t index) const override;
  /// Tokens of all files.
  int64_t tokens() const { return tokens_; }

 private:
  struct File;
  struct Place {
    const File* file;
    int64_t first;  // token
  };
  Place place_of(int64_t index) const;
  void widen(const Place& place, int64_t* input, int64_t* target) const;

  TokenOptions options_;
  std::vector<File> files_;
  int64_t size_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace bellows::data
