// The only source that sees spdlog: header-only, with the system's fmt, so that nothing is linked.
// It must be compiled without LibTorch's include folder, which carries another fmt.
#include "bellows/core/log.h"

#ifndef SPDLOG_FMT_EXTERNAL
#define SPDLOG_FMT_EXTERNAL
#endif
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

namespace bellows::log {
namespace {

constexpr std::array<std::pair<std::string_view, Level>, 6> kWords = {{{"trace", Level::trace},
                                                                       {"debug", Level::debug},
                                                                       {"info", Level::info},
                                                                       {"warn", Level::warn},
                                                                       {"error", Level::error},
                                                                       {"off", Level::off}}};

// Never destroyed: other objects may log while the program leaves.
spdlog::logger& logger() {
  static spdlog::logger& instance = *[] {
    auto* made = new spdlog::logger("bellows", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(spdlog::level::trace);
    made->set_pattern("[%Y-%m-%d %H:%M:%S.%e] [bellows] [%l] %v");
    return made;
  }();
  return instance;
}

void write(spdlog::level::level_enum as, std::string_view text) {
  logger().log(as, spdlog::string_view_t(text.data(), text.size()));
}

Level level_from_environment() {
  const char* word = std::getenv("BELLOWS_LOG");
  if (word == nullptr || *word == '\0') return Level::warn;
  for (const auto& [name, value] : kWords) {
    if (name == word) return value;
  }
  write(spdlog::level::warn, "BELLOWS_LOG: got \"" + std::string(word) +
                                 "\", expected trace, debug, info, warn, error or off; using warn");
  return Level::warn;
}

std::atomic<Level>& current_level() {
  static std::atomic<Level> current{level_from_environment()};
  return current;
}

}  // namespace

Level level() {
  return current_level().load(std::memory_order_relaxed);
}
void set_level(Level level) {
  current_level().store(level, std::memory_order_relaxed);
}

void debug(std::string_view text) {
  if (enabled(Level::debug)) write(spdlog::level::debug, text);
}
void info(std::string_view text) {
  if (enabled(Level::info)) write(spdlog::level::info, text);
}
void warn(std::string_view text) {
  if (enabled(Level::warn)) write(spdlog::level::warn, text);
}
void error(std::string_view text) {
  if (enabled(Level::error)) write(spdlog::level::err, text);
}

void warn_once(std::string_view text) {
  static std::mutex& mutex = *new std::mutex;
  static auto& written = *new std::set<std::string, std::less<>>;
  if (!enabled(Level::warn)) return;
  {
    const std::lock_guard lock(mutex);
    if (!written.emplace(text).second) return;
  }
  write(spdlog::level::warn, text);
}

}  // namespace bellows::log
