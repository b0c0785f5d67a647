// Log lines on standard error. The level comes from BELLOWS_LOG: trace, debug, info, warn
// (default), error or off; an unknown word is reported once and means warn. Safe from every thread;
// a line is written whole.
#pragma once

#include <filesystem>
#include <string_view>

namespace bellows::log {

enum class Level { trace, debug, info, warn, error, off };

/// The level in force; read from BELLOWS_LOG at first use.
Level level();
void set_level(Level level);
inline bool enabled(Level wanted) {
  return wanted >= level();
}

void debug(std::string_view text);
void info(std::string_view text);
void warn(std::string_view text);
void error(std::string_view text);

/// As warn, but the same text is written once in the life of the process.
void warn_once(std::string_view text);

/// From now on lines of level info and above are also appended to this file, whatever the level in
/// force. Throws FileError when it cannot be written.
void add_file(const std::filesystem::path& path);

}  // namespace bellows::log
