#include "bellows/launch/flag_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>

#include "bellows/core/cuda_driver.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/launch/environment.h"

namespace bellows::launch {
namespace {

constexpr int kMostRanks = 4096;
constexpr int kMostNodes = 4096;

}  // namespace

void bad_flag(const std::string& flag, const std::string& got, const std::string& expected) {
  throw ValueError("--" + flag + ": got '" + got + "', expected " + expected);
}

int whole_number(const std::string& flag, const std::string& text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    bad_flag(flag, text, concat("a whole number from ", low, " to ", high));
  }
  return value;
}

double seconds_of(const std::string& flag, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      value < 0 || value > 1e6) {
    bad_flag(flag, text, "seconds from 0 to 1000000");
  }
  return value;
}

int ranks_of(const std::string& text) {
  if (text == "cpu") return usable_cores();
  if (text == "gpu" || text == "auto") {
    const int devices = static_cast<int>(probe_cuda_driver().devices.size());
    if (devices > 0) return devices;
    if (text == "auto") return usable_cores();
    throw EnvironmentError(
        "--nproc-per-node gpu: this machine has no CUDA device that its driver shows; `bellows "
        "doctor` tells more, --nproc-per-node cpu starts one rank a core");
  }
  if (text.empty() || text.find_first_not_of("0123456789-+") != std::string::npos) {
    bad_flag("nproc-per-node", text, "a number of ranks, auto, cpu or gpu");
  }
  return whole_number("nproc-per-node", text, 1, kMostRanks);
}

void nodes_of(const std::string& text, NodeOptions& nodes) {
  const size_t colon = text.find(':');
  const int least = whole_number("nnodes", text.substr(0, colon), 1, kMostNodes);
  const int most = colon == std::string::npos
                       ? least
                       : whole_number("nnodes", text.substr(colon + 1), 1, kMostNodes);
  if (least > most) bad_flag("nnodes", text, "MIN:MAX with MIN no larger than MAX");
  nodes.least = least;
  nodes.most = most;
}

void take_conf(const std::string& text, Options& options) {
  NodeOptions& nodes = options.nodes;
  const std::map<std::string, double*> times = {{"join_timeout", &nodes.join},
                                                {"timeout", &nodes.join},
                                                {"last_call_timeout", &nodes.last_call},
                                                {"close_timeout", &nodes.close},
                                                {"heartbeat_timeout", &nodes.call},
                                                {"heartbeat", &nodes.call},
                                                {"keep_alive_interval", &nodes.keep_alive}};
  const std::vector<std::string> without_effect = {"read_timeout", "use_libuv", "rank"};
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos) bad_flag("rdzv-conf", text, "KEY=VALUE,KEY=VALUE…");
    const std::string key = part.substr(0, equals), value = part.substr(equals + 1);
    const std::string flag = "rdzv-conf " + key;
    if (const auto time = times.find(key); time != times.end()) {
      *time->second = seconds_of(flag, value);
      if (*time->second <= 0) bad_flag(flag, value, "more than 0 seconds");
    } else if (key == "keep_alive_max_attempt") {
      nodes.attempts = whole_number(flag, value, 1, 1'000'000);
    } else if (key == "is_host") {
      const bool yes = value == "1" || value == "true" || value == "True";
      if (!yes && value != "0" && value != "false" && value != "False") {
        bad_flag(flag, value, "true or false");
      }
      nodes.has_store = yes;
    } else if (key == "store_type") {
      if (value != "tcp") bad_flag(flag, value, "tcp");
    } else if (std::find(without_effect.begin(), without_effect.end(), key) !=
               without_effect.end()) {
      options.notes.push_back("--rdzv-conf: " + key + " has no effect");
    } else {
      std::vector<std::string> names = {"keep_alive_max_attempt", "is_host", "store_type"};
      for (const auto& [name, unused] : times) names.push_back(name);
      throw ValueError(concat("--rdzv-conf: unknown key '", key, "', expected ", join(names)));
    }
  }
}

Binding binding_of(const std::string& flag, const std::string& text) {
  const std::map<std::string, Binding> numa = {{"node", Binding::node},
                                               {"socket", Binding::socket},
                                               {"exclusive", Binding::exclusive},
                                               {"core-complex", Binding::core_complex}};
  const std::map<std::string, Binding> plain = {{"none", Binding::none}, {"core", Binding::core}};
  const auto& words = flag == "bind-to" ? plain : numa;
  const auto found = words.find(text);
  if (found == words.end()) {
    bad_flag(flag, text,
             flag == "bind-to" ? "core or none"
                               : "node, socket, exclusive or "
                                 "core-complex");
  }
  return found->second;
}

std::vector<unsigned> streams_of(const std::string& flag, const std::string& text, int ranks) {
  std::vector<unsigned> all(static_cast<size_t>(ranks), kNoStream);
  const std::string expected =
      "0 (none), 1 (output), 2 (error) or 3 (both), or RANK:NUMBER,RANK:NUMBER…";
  const auto number = [&](const std::string& word) {
    if (word.size() != 1 || word[0] < '0' || word[0] > '3') bad_flag(flag, text, expected);
    return static_cast<unsigned>(word[0] - '0');
  };
  if (text.find(':') == std::string::npos) {
    std::fill(all.begin(), all.end(), number(text));
    return all;
  }
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t colon = part.find(':');
    if (colon == std::string::npos || colon == 0) bad_flag(flag, text, expected);
    const int rank = whole_number(flag, part.substr(0, colon), 0, ranks - 1);
    all.at(static_cast<size_t>(rank)) = number(part.substr(colon + 1));
  }
  return all;
}

}  // namespace bellows::launch
