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
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "bellows/core/file.h"

namespace bellows::log {
namespace {

constexpr std::array<std::pair<std::string_view, Level>, 6> kWords = {{{"trace", Level::trace},
                                                                       {"debug", Level::debug},
                                                                       {"info", Level::info},
                                                                       {"warn", Level::warn},
                                                                       {"error", Level::error},
                                                                       {"off", Level::off}}};

struct Outputs {
  std::shared_ptr<spdlog::sinks::stderr_sink_mt> terminal =
      std::make_shared<spdlog::sinks::stderr_sink_mt>();
  std::shared_ptr<spdlog::sinks::dist_sink_mt> all =
      std::make_shared<spdlog::sinks::dist_sink_mt>();
  spdlog::logger logger{"bellows", all};
  std::atomic<bool> to_file{false};

  Outputs() {
    all->add_sink(terminal);
    logger.set_level(spdlog::level::trace);
    logger.flush_on(spdlog::level::trace);
    logger.set_pattern("[%Y-%m-%d %H:%M:%S.%e] [bellows] [%l] %v");
  }
};

// Never destroyed: other objects may log while the program leaves.
Outputs& outputs() {
  static Outputs& instance = *new Outputs;
  return instance;
}

void write(spdlog::level::level_enum as, std::string_view text) {
  outputs().logger.log(as, spdlog::string_view_t(text.data(), text.size()));
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

/// `off` becomes spdlog's level above error, which nothing here uses.
spdlog::level::level_enum to_spdlog(Level level) {
  return static_cast<spdlog::level::level_enum>(static_cast<int>(level));
}
static_assert(static_cast<int>(Level::warn) == SPDLOG_LEVEL_WARN &&
              static_cast<int>(Level::error) == SPDLOG_LEVEL_ERROR);

/// The terminal takes what the level lets through; a file takes everything from info on.
bool wanted(Level level) {
  return enabled(level) ||
         (level >= Level::info && outputs().to_file.load(std::memory_order_relaxed));
}

void write_if_wanted(Level as, std::string_view text) {
  if (!wanted(as)) return;
  outputs().terminal->set_level(to_spdlog(level()));
  write(to_spdlog(as), text);
}

}  // namespace

Level level() {
  return current_level().load(std::memory_order_relaxed);
}
void set_level(Level level) {
  current_level().store(level, std::memory_order_relaxed);
}

void debug(std::string_view text) {
  write_if_wanted(Level::debug, text);
}
void info(std::string_view text) {
  write_if_wanted(Level::info, text);
}
void warn(std::string_view text) {
  write_if_wanted(Level::warn, text);
}
void error(std::string_view text) {
  write_if_wanted(Level::error, text);
}

void add_file(const std::filesystem::path& path) {
  {
    OutputFile check(path, /*append=*/true);
  }  // an error of ours, naming the file, where it cannot be written
  auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
  sink->set_level(spdlog::level::info);
  sink->set_pattern("[%Y-%m-%d %H:%M:%S.%e] [%l] %v");
  outputs().all->add_sink(std::move(sink));
  outputs().to_file = true;
}

void warn_once(std::string_view text) {
  static std::mutex& mutex = *new std::mutex;
  static auto& written = *new std::set<std::string, std::less<>>;
  if (!wanted(Level::warn)) return;
  {
    const std::lock_guard lock(mutex);
    if (!written.emplace(text).second) return;
  }
  write_if_wanted(Level::warn, text);
}

}  // namespace bellows::log
