// The table of what devices are capable of: its file and its checks.
#include <toml++/toml.h>

#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/options.h"
#include "bellows/core/text.h"
#include "bellows/device/sim.h"
#include "bellows/device/sim/cost.h"

namespace bellows::sim {
namespace {

constexpr const char* kExpected =
    "expected one [[device]] table for each device, with peak_tflops, memory_gbps, link_gbps and "
    "latency_us";

std::string place(const std::string& file, const toml::node& node) {
  return concat(file, ":", node.source().begin.line);
}

Capability capability_from(const toml::table& table, const std::string& file) {
  bellows::Options options("device");
  for (const auto& [key, node] : table) {
    const std::optional<double> number = node.is_number() ? node.value<double>() : std::nullopt;
    if (!number)
      throw ValueError(concat(place(file, node), ": device.", key.str(), ": expected a number"));
    options.set(std::string(key.str()), *number, place(file, node));
  }
  const auto rate = [&](const char* key) {
    if (!options.has(key))
      throw ValueError(concat(place(file, table), ": device.", key, " is missing; ", kExpected));
    const double value = options.get(key, 0.0);
    if (!(value > 0) || value > 1e9)
      options.fail(key, concat("got ", value, ", expected above 0, at most 1e9"));
    return value;
  };
  Capability out;
  out.peak_tflops = rate("peak_tflops");
  out.memory_gbps = rate("memory_gbps");
  out.link_gbps = rate("link_gbps");
  out.latency_us = options.get_in("latency_us", 0.0, 0.0, 1e9);
  options.reject_unknown();
  return out;
}

}  // namespace

std::vector<Capability> read_cost_model(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  toml::table document;
  try {
    document = toml::parse(text, file.string());
  } catch (const toml::parse_error& error) {
    throw ValueError(
        concat(file.string(), ":", error.source().begin.line, ": ", error.description()));
  }
  std::vector<Capability> out;
  for (const auto& [key, node] : document) {
    const toml::array* entries = node.as_array();
    if (key.str() != "device" || entries == nullptr ||
        !entries->is_homogeneous(toml::node_type::table))
      throw ValueError(concat(place(file.string(), node), ": got ", key.str(), "; ", kExpected));
    for (const toml::node& entry : *entries)
      out.push_back(capability_from(*entry.as_table(), file.string()));
  }
  if (out.empty()) throw ValueError(concat(file.string(), ": describes no device; ", kExpected));
  return out;
}

void check_cost_model(const std::vector<Capability>& capabilities) {
  for (size_t i = 0; i < capabilities.size(); ++i) {
    const Capability& entry = capabilities[i];
    if (!(entry.peak_tflops > 0) || !(entry.memory_gbps > 0) || !(entry.link_gbps > 0) ||
        !(entry.latency_us >= 0)) {
      throw ValueError(concat("sim: cost model: device ", i, ": got peak_tflops ",
                              entry.peak_tflops, ", memory_gbps ", entry.memory_gbps,
                              ", link_gbps ", entry.link_gbps, ", latency_us ", entry.latency_us,
                              ", expected rates above 0 and a latency of 0 or more"));
    }
  }
}

}  // namespace bellows::sim
