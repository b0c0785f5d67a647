// Builds a model under a seed and writes what it holds and gives: dump_model NAME SEED IN OUT
// [KEY=VALUE ...], where a value is true, false, a number, a word or, with a comma, a list of whole
// numbers. IN holds
// `input`; OUT gets `state.*` as built, `train` and `eval`, the outputs in both modes in this
// order.
#include <charconv>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include "bellows/checkpoint/safetensors.h"
#include "bellows/core/error.h"
#include "bellows/nn/registry.h"

namespace {

template <class T>
std::optional<T> number(const std::string& text) {
  T value = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  return read.ec == std::errc() && read.ptr == end ? std::optional(value) : std::nullopt;
}

bellows::OptionValue parse(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  if (const auto whole = number<int64_t>(text)) return *whole;
  if (const auto real = number<double>(text)) return *real;
  if (text.find(',') == std::string::npos) return text;
  std::vector<int64_t> list;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) list.push_back(std::stoll(item));
  return list;
}

void dump(int argc, char** argv) {
  bellows::Options options("model");
  for (int i = 5; i < argc; ++i) {
    const std::string text = argv[i];
    options.set(text.substr(0, text.find('=')), parse(text.substr(text.find('=') + 1)));
  }
  at::manual_seed(std::stoull(argv[2]));
  const bellows::nn::Model model = bellows::nn::builtin_models().make(argv[1], options);
  options.reject_unknown();

  bellows::NamedTensors out;
  for (const auto& [name, tensor] : model.state_dict())
    out.emplace_back("state." + name, tensor.clone());
  const at::Tensor input = bellows::checkpoint::read_safetensors(argv[3]).at(0).second;
  const at::NoGradGuard no_grad;
  out.emplace_back("train", model.forward(input).tensor());
  model.eval();
  out.emplace_back("eval", model.forward(input).tensor());
  bellows::checkpoint::write_safetensors(argv[4], out);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  try {
    dump(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
