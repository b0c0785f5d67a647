#include "bellows/parallel/agreement.h"

#include <sstream>

#include <c10/core/ScalarType.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::parallel {
namespace {

std::string joined(const std::vector<Fact>& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += concat(name, '\t', value, '\n');
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string readable(const std::vector<std::string>& lines, size_t index) {
  if (index >= lines.size()) return "nothing more";
  std::string line = lines[index];
  const size_t tab = line.find('\t');
  return tab == std::string::npos ? line : line.replace(tab, 1, " ");
}

size_t count_of(const std::vector<std::string>& lines, const std::string& kind) {
  size_t count = 0;
  for (const auto& line : lines) count += line.starts_with(kind);
  return count;
}

[[noreturn]] void refuse(int64_t rank, const std::vector<std::string>& first,
                         const std::vector<std::string>& other) {
  size_t index = 0;
  while (index < first.size() && index < other.size() && first[index] == other[index]) ++index;
  std::string counts;
  for (const std::string kind : {"parameter", "buffer"}) {
    const size_t here = count_of(first, kind + " "), there = count_of(other, kind + " ");
    if (here != there)
      counts += concat(" Rank 0 has ", here, " ", kind, "s, rank ", rank, " has ", there, ".");
  }
  throw ValueError(concat("The model is not the same on all ranks. Rank 0 has ",
                          readable(first, index), " where rank ", rank, " has ",
                          readable(other, index), ".", counts,
                          " Expected the same names, order, shapes, types and options on every "
                          "rank: build the model from the same configuration everywhere."));
}

}  // namespace

Fact describe(const std::string& kind, const std::string& name, const at::Tensor& tensor) {
  return {concat(kind, ' ', name),
          concat(c10::toString(tensor.scalar_type()), ' ', tensor.sizes(), " strides ",
                 tensor.strides(), tensor.requires_grad() ? "" : " (not trained)")};
}

void require_agreement(const Group& group, const std::vector<Fact>& facts) {
  const std::vector<Tree> texts = group.all_gather_object(joined(facts));
  const std::string& first = texts[0].string();
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const std::string& text = texts[rank].string();
    if (text != first) refuse(static_cast<int64_t>(rank), lines_of(first), lines_of(text));
  }
}

}  // namespace bellows::parallel
