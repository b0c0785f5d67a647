#include "bellows/checkpoint/json_text.h"

namespace bellows::checkpoint {
namespace {

bool nests_deeper(std::string_view text, int deepest) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;  // whatever it is, it does not end the string
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      if (++depth > deepest) return true;
    } else if (!quoted && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return false;
}

}  // namespace

nlohmann::json parse_json(std::string_view text, int deepest) {
  using nlohmann::json;
  if (nests_deeper(text, deepest)) return json(json::value_t::discarded);  // braces make a list
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace bellows::checkpoint
