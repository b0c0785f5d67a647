#include "cli/find_libtorch.h"

#include <cstdlib>
#include <fstream>

#include "bellows/core/elf.h"
#include "bellows/core/error.h"
#include "bellows/core/libtorch_info.h"
#include "bellows/core/text.h"

namespace bellows::cli {
namespace fs = std::filesystem;
namespace {

bool holds_libtorch(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "lib" / "libtorch_cpu.so", ignored);
}

/// site-packages/torch folders of a virtual environment.
std::vector<fs::path> of_environment(const fs::path& venv) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(venv / "lib", ignored)) {
    const fs::path torch = entry.path() / "site-packages" / "torch";
    if (entry.path().filename().string().starts_with("python3") &&
        fs::is_directory(torch, ignored)) {
      found.push_back(torch);
    }
  }
  if (found.empty()) found.push_back(venv);
  return found;
}

std::vector<fs::path> from_configuration(const fs::path& file) {
  std::ifstream input(file);
  std::string line;
  if (input && std::getline(input, line) && !line.empty()) return {line};
  return {};
}

class Search {
 public:
  void try_places(const std::string& source, const std::vector<fs::path>& folders,
                  const fs::path& shown = {}) {
    if (result.root) return;
    for (const auto& folder : folders) {
      std::error_code ignored;
      const auto mismatch =
          must_match && holds_libtorch(folder) ? mismatch_of(folder) : std::nullopt;
      if (mismatch) {
        result.looked_at.push_back(source + ": " + *mismatch);
        continue;
      }
      if (holds_libtorch(folder)) {
        result.root = fs::canonical(folder, ignored);
        result.source = source;
        return;
      }
      result.looked_at.push_back(source + ": " + folder.string());
    }
    if (folders.empty())
      result.looked_at.push_back(source + ": " + shown.string() + " is not there");
  }
  LibTorchSearch result;
  bool must_match = false;
};

}  // namespace

fs::path program_folder() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path();
}

std::optional<std::string> damage_of(const fs::path& libtorch) {
  for (const char* name : {"libc10.so", "libtorch_cpu.so"}) {
    const fs::path library = libtorch / "lib" / name;
    std::error_code ignored;
    if (!fs::exists(library, ignored)) return library.string() + " is missing";
    try {
      ElfFile(library).needed();
    } catch (const Error& error) {
      return error.what();
    }
  }
  return std::nullopt;
}

std::optional<std::string> mismatch_of(const fs::path& libtorch) {
  const auto minor = [](const std::string& version) {
    return version.substr(0, version.find('.', version.find('.') + 1));
  };
  const std::string version = libtorch_version(libtorch);
  if (version.empty() || minor(version) == minor(BELLOWS_LIBTORCH_VERSION)) return std::nullopt;
  return concat(libtorch.string(), " is LibTorch ", version,
                ", but this Bellows was built with " BELLOWS_LIBTORCH_VERSION
                ", and LibTorch keeps no binary compatibility between minor versions");
}

LibTorchSearch find_libtorch(const std::string& given) {
  Search search;
  const char* variable = std::getenv("LIBTORCH");
  if (!given.empty()) {
    search.try_places("--libtorch", {given});
    return search.result;
  }
  if (variable && *variable) {
    search.try_places("environment variable LIBTORCH", {variable});
    return search.result;
  }
  search.must_match = true;
  const fs::path here = program_folder();
  search.try_places("beside the program",
                    {here.parent_path(), here / "libtorch", here.parent_path() / "libtorch"});
  const fs::path configuration = here.parent_path() / "etc" / "bellows" / "libtorch";
  search.try_places("installed configuration", from_configuration(configuration), configuration);
  search.try_places(".venv of the current folder", of_environment(fs::current_path() / ".venv"));
  const fs::path source_tree =
      here.parent_path().parent_path().parent_path();  // <source>/build/<preset>/bin
  search.try_places(".venv of the source tree", of_environment(source_tree / ".venv"));
  return search.result;
}

}  // namespace bellows::cli
