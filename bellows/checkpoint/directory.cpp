#include "bellows/checkpoint/directory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <random>
#include <unistd.h>

#include "bellows/checkpoint/manifest.h"
#include "bellows/core/error.h"
#include "bellows/core/file.h"
#include "bellows/core/text.h"

namespace bellows::checkpoint {
namespace {

namespace fs = std::filesystem;

// Repeats a call for as long as a signal interrupts it; throws FileError.
template <class Call>
void checked(const fs::path& path, const char* operation, Call call) {
  while (call() == -1) {
    if (errno != EINTR) throw FileError(path, operation, errno);
  }
}

// The machine's name without what separates the parts of a hidden name.
std::string host_name() {
  std::array<char, 256> name = {};
  ::gethostname(name.data(), name.size() - 1);
  std::string host = name.data();
  std::ranges::replace_if(
      host, [](char c) { return c == '-' || c == '.' || c == '/'; }, '_');
  return host.empty() ? "host" : host;
}

// What a directory's name says.
struct Name {
  int64_t step = 0;
  std::string kind;  // empty: complete
  std::string host;
  pid_t process = 0;
};

std::optional<int64_t> parse_number(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  int64_t number = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    number = number * 10 + (digit - '0');
  }
  return number;
}

// "step-N" or ".step-N.KIND-HOST-PID-RANDOM".
std::optional<Name> parse_name(const std::string& text) {
  const bool hidden = text.starts_with('.');
  const std::string_view rest = std::string_view(text).substr(hidden ? 1 : 0);
  if (!rest.starts_with("step-")) return std::nullopt;
  const size_t dot = rest.find('.');
  const auto step = parse_number(rest.substr(5, dot == std::string_view::npos ? dot : dot - 5));
  if (!step || hidden == (dot == std::string_view::npos)) return std::nullopt;
  Name name{.step = *step, .kind = {}, .host = {}};
  if (!hidden) return name;

  std::array<std::string, 4> parts;
  size_t part = 0;
  for (const char c : rest.substr(dot + 1)) {
    if (c != '-') {
      parts[part] += c;
    } else if (++part == parts.size()) {
      return std::nullopt;
    }
  }
  const auto process = parse_number(parts[2]);
  if (!process) return std::nullopt;
  name.kind = parts[0];
  name.host = parts[1];
  name.process = static_cast<pid_t>(*process);
  return name;
}

bool is_abandoned(const fs::path& path, const Name& name) {
  if (name.host == host_name()) {
    return name.process == ::getpid() || (::kill(name.process, 0) == -1 && errno == ESRCH);
  }
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  return !error && fs::file_time_type::clock::now() - written > std::chrono::hours(24);
}

std::vector<std::pair<fs::path, Name>> named_directories(const fs::path& root) {
  std::vector<std::pair<fs::path, Name>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, error)) {
    const auto name = parse_name(entry.path().filename().string());
    if (name && !entry.is_symlink() && entry.is_directory(error)) {
      found.emplace_back(entry.path(), *name);
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw FileError(root, "list the directory", error.value());
  }
  return found;
}

}  // namespace

std::unique_lock<std::mutex> take_turn() {
  static std::mutex mutex;
  return std::unique_lock(mutex);
}

std::string step_name(int64_t step) {
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "step-%08lld", static_cast<long long>(step));
  return text.data();
}

fs::path hidden_name(const fs::path& root, int64_t step, const std::string& kind) {
  std::random_device random;
  const auto number = (uint64_t{random()} << 32) | random();
  return root / concat(".", step_name(step), ".", kind, "-", host_name(), "-", ::getpid(), "-",
                       hash_text(number));
}

std::vector<fs::path> candidates(const fs::path& root) {
  std::vector<std::pair<fs::path, Name>> found = named_directories(root);
  std::erase_if(found, [](const auto& entry) {
    return !entry.second.kind.empty() && entry.second.kind != "old";
  });
  std::ranges::sort(found, [](const auto& a, const auto& b) {
    if (a.second.step != b.second.step) return a.second.step < b.second.step;
    return a.second.kind > b.second.kind;
  });
  std::vector<fs::path> paths;
  for (auto& [path, name] : found) paths.push_back(std::move(path));
  return paths;
}

std::string fault_of(const fs::path& directory, bool* newer) {
  try {
    const Manifest manifest = read_manifest(directory);
    const auto name = parse_name(directory.filename().string());
    if (name && name->step != manifest.step) {
      return concat(directory.string(), ": it holds step ", manifest.step);
    }
    return "";
  } catch (const ValueError& error) {
    if (newer != nullptr) *newer = true;
    return error.what();
  } catch (const Error& error) {
    return error.what();
  }
}

void make_directory(const fs::path& path) {
  checked(path, "mkdir", [&] { return file_system().mkdir(path.c_str(), 0777); });
}

void remove_directory(const fs::path& path) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    entries.push_back(entry.path());
  }
  for (const fs::path& entry : entries) {
    checked(entry, "unlink", [&] { return file_system().unlink(entry.c_str()); });
  }
  if (::rmdir(path.c_str()) == -1 && errno != ENOENT) throw FileError(path, "rmdir", errno);
}

fs::path publish(const fs::path& root, int64_t step, const fs::path& written) {
  const fs::path final_path = root / step_name(step);
  const auto rename = [](const fs::path& from, const fs::path& to) {
    checked(to, "rename", [&] { return file_system().rename(from.c_str(), to.c_str()); });
  };
  if (!fs::exists(fs::symlink_status(final_path))) {
    rename_durably(written, final_path);
    return final_path;
  }
  const fs::path aside = hidden_name(root, step, "old");
  rename(final_path, aside);
  try {
    rename(written, final_path);
  } catch (const FileError&) {
    file_system().rename(aside.c_str(), final_path.c_str());
    throw;
  }
  sync_directory(root);
  remove_directory(aside);
  return final_path;
}

void discard(const fs::path& directory) {
  const auto name = parse_name(directory.filename().string());
  if (!name || (!name->kind.empty() && name->kind != "old")) {
    throw ValueError(directory.string() + ": is no checkpoint, expected a directory step-N");
  }
  std::error_code error;  // what is not there is the rename's error
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.is_symlink() || !entry.is_directory()) continue;
    throw ValueError(entry.path().string() +
                     ": is a directory, and a checkpoint has none; remove it by hand");
  }
  const fs::path hidden = hidden_name(directory.parent_path(), name->step, "del");
  rename_durably(directory, hidden);
  remove_directory(hidden);
}

void collect_left_overs(const fs::path& root) {
  for (const auto& [path, name] : named_directories(root)) {
    if (name.kind.empty() || !is_abandoned(path, name)) continue;
    const fs::path complete = root / step_name(name.step);
    if (name.kind != "old" || fault_of(complete).empty()) {
      remove_directory(path);
    } else if (!fs::exists(fs::symlink_status(complete))) {
      rename_durably(path, complete);
    }
  }
}

}  // namespace bellows::checkpoint
