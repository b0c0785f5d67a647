// `bellows launch`, run as a user runs it.
#pragma once

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace bellows::testing {

inline std::vector<std::string> launch_words(std::vector<std::string> words) {
  words.insert(words.begin(), {BELLOWS_PROGRAM, "launch"});
  return words;
}

/// `bellows launch FLAGS -- sh -c SCRIPT`.
inline std::vector<std::string> shell_job(std::vector<std::string> flags,
                                          const std::string& script) {
  flags.insert(flags.end(), {"--", "sh", "-c", script});
  return launch_words(std::move(flags));
}

inline ProcessResult launch(std::vector<std::string> words,
                            const std::map<std::string, std::string>& environment = {}) {
  return Process(launch_words(std::move(words)), environment).wait(std::chrono::seconds(60));
}

inline ProcessResult launch_shell(std::vector<std::string> flags, const std::string& script,
                                  const std::map<std::string, std::string>& environment = {}) {
  return Process(shell_job(std::move(flags), script), environment).wait(std::chrono::seconds(60));
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream input(text);
  for (std::string line; std::getline(input, line);) lines.push_back(line);
  return lines;
}

}  // namespace bellows::testing
