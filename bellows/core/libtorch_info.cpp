#include "bellows/core/libtorch_info.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <link.h>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "bellows/core/elf.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// The text after `key` on the first line that has it, up to the end of the line.
std::string line_after(const fs::path& path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find(key);
    if (at == std::string::npos) continue;
    const size_t start = line.find_first_not_of(" ", at + key.size());
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

std::string version_from_header(const fs::path& include) {
  for (const char* name : {"torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h",
                           "torch/version.h"}) {
    const fs::path header = include / name;
    const std::string major = line_after(header, "define TORCH_VERSION_MAJOR");
    const std::string minor = line_after(header, "define TORCH_VERSION_MINOR");
    const std::string patch = line_after(header, "define TORCH_VERSION_PATCH");
    if (!major.empty() && !minor.empty() && !patch.empty())
      return concat(major, ".", minor, ".", patch);
  }
  return "";
}

CxxAbi find_abi(const ElfFile& c10) {
  const std::string names = c10.dynamic_strings();
  constexpr std::string_view kConstructor = "_ZN3c105ErrorC";
  CxxAbi abi = CxxAbi::unknown;
  for (size_t at = names.find(kConstructor); at != std::string::npos;
       at = names.find(kConstructor, at + 1)) {
    const std::string_view name(names.c_str() + at);
    if (name.find("__cxx11") != std::string_view::npos) return CxxAbi::cxx11;
    if (name.find("Ss") != std::string_view::npos) abi = CxxAbi::old;
  }
  return abi;
}

// libcudart.so.13, libcudart-1b2c3d4e.so.12, libcudart.so.11.0
int cudart_major(const std::vector<std::string>& needed) {
  for (const auto& name : needed) {
    const size_t at = name.find(".so.");
    if (name.starts_with("libcudart") && at != std::string::npos)
      return std::atoi(name.c_str() + at + 4);
  }
  return 0;
}

// Where the loader would look: beside LibTorch, in the NVIDIA packages of the same Python
// environment, in LD_LIBRARY_PATH and in the system's cache of libraries.
std::vector<std::string> missing_libraries(const std::vector<std::string>& needed,
                                           const fs::path& lib) {
  std::vector<fs::path> folders{lib};
  std::error_code error;
  for (const auto& package : fs::directory_iterator(lib / "../../nvidia", error)) {
    folders.push_back(package.path() / "lib");
  }
  if (const char* paths = std::getenv("LD_LIBRARY_PATH")) {
    std::istringstream in(paths);
    for (std::string folder; std::getline(in, folder, ':');) folders.emplace_back(folder);
  }
  std::ostringstream cache;
  cache << std::ifstream("/etc/ld.so.cache", std::ios::binary).rdbuf();
  const std::string cached = std::move(cache).str();

  std::vector<std::string> out;
  for (const auto& name : needed) {
    const auto has = [&](const fs::path& folder) { return is_there(folder / name); };
    const bool in_cache = cached.find('/' + name + '\0') != std::string::npos;
    if (!in_cache && std::ranges::none_of(folders, has)) out.push_back(name);
  }
  return out;
}

// nvcc puts the code of each source file into one "fat binary": a header, then one entry for each
// architecture.
struct FatBinary {
  static constexpr uint32_t kMagic = 0xBA55ED50;
  static constexpr uint64_t kHeader =
      16;  // magic, version, size of this header, size of the entries
  static constexpr uint64_t kEntryStart =
      32;  // kind, version, header size, payload size, …, architecture
  static constexpr uint16_t kPtx = 1;
};

template <class T>
T field(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

using ArchSet = std::set<std::pair<uint32_t, bool>>;

ArchSet archs_of_one(const ElfFile& file, uint64_t at, uint64_t end) {
  ArchSet archs;
  while (at + FatBinary::kEntryStart <= end) {
    const std::string entry = file.bytes(at, FatBinary::kEntryStart);
    archs.emplace(field<uint32_t>(entry, 28), field<uint16_t>(entry, 0) == FatBinary::kPtx);
    const uint64_t size = uint64_t{field<uint32_t>(entry, 4)} + field<uint64_t>(entry, 8);
    if (size < FatBinary::kEntryStart || size > end - at) break;
    at += size;
  }
  return archs;
}

// What all of the library's fat binaries were compiled for: a device outside it lacks at least one
// kernel.
std::vector<CudaArch> find_archs(const ElfFile& cuda) {
  const auto section = cuda.section(".nv_fatbin");
  const uint64_t end = section.offset + section.size;
  std::optional<ArchSet> common;
  for (uint64_t at = section.offset; section.size > 0 && at + FatBinary::kHeader <= end;) {
    const std::string header = cuda.bytes(at, FatBinary::kHeader);
    if (field<uint32_t>(header, 0) != FatBinary::kMagic) {
      at += 8;  // they are aligned to 8 bytes
      continue;
    }
    const uint64_t start = at + field<uint16_t>(header, 6);
    const uint64_t size = field<uint64_t>(header, 8);
    if (start > end || size > end - start) break;
    const ArchSet archs = archs_of_one(cuda, start, start + size);
    if (!common) common = archs;
    std::erase_if(*common, [&](const auto& arch) { return !archs.contains(arch); });
    at = start + size;
  }
  std::vector<CudaArch> out;
  if (common) {
    for (const auto& [number, ptx] : *common)
      out.push_back({static_cast<int>(number / 10), static_cast<int>(number % 10), ptx});
  }
  return out;
}

// Runs `read` on a library; a damaged file becomes a sentence instead of an error.
void read_library(const fs::path& path, LibTorchInfo& info,
                  const std::function<void(const ElfFile&)>& read) {
  try {
    read(ElfFile(path));
  } catch (const EnvironmentError& error) {
    info.damaged.push_back(error.what());
  }
}

fs::path find_module(const fs::path& given, const fs::path& lib) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<fs::path> folders{given};
  if (given.empty()) folders = {program, program / "../lib", program / "../lib64", lib};
  for (const auto& folder : folders) {
    if (is_there(folder / "libbellows_cuda.so"))
      return (folder / "libbellows_cuda.so").lexically_normal();
  }
  return {};
}

}  // namespace

// The download has `build-version`, the Python package `version.py`; the header lacks the part
// after "+".
std::string libtorch_version(const fs::path& root) {
  std::string version = line_after(root / "build-version", "");
  if (version.empty()) {
    version = line_after(root / "version.py", "__version__ = '");
    version = version.substr(0, version.find('\''));
  }
  return version.empty() ? version_from_header(root / "include") : version;
}

std::string_view to_string(CxxAbi abi) {
  switch (abi) {
    case CxxAbi::old:
      return "old (_GLIBCXX_USE_CXX11_ABI=0)";
    case CxxAbi::cxx11:
      return "cxx11 (_GLIBCXX_USE_CXX11_ABI=1)";
    case CxxAbi::unknown:
      break;
  }
  return "unknown";
}

LibTorchInfo inspect_libtorch(const fs::path& folder, const fs::path& module_folder) {
  LibTorchInfo info;
  info.root = folder;
  if (!is_there(folder / "lib/libtorch_cpu.so") && is_there(folder / "libtorch_cpu.so"))
    info.root = (folder / "..").lexically_normal();
  const fs::path lib = info.root / "lib";
  info.has_cpu = is_there(lib / "libtorch_cpu.so");
  if (!info.has_cpu) {
    throw EnvironmentError(concat("no LibTorch in ", folder.string(),
                                  ": expected lib/libtorch_cpu.so there; set LIBTORCH to "
                                  "the folder of LibTorch that has lib/ and include/"));
  }
  info.has_c10 = is_there(lib / "libc10.so");
  info.has_cuda = is_there(lib / "libtorch_cuda.so");
  info.version = libtorch_version(info.root);
  if (info.has_c10)
    read_library(lib / "libc10.so", info, [&](const ElfFile& file) { info.abi = find_abi(file); });
  if (info.has_cuda) {
    read_library(lib / "libtorch_cuda.so", info, [&](const ElfFile& file) {
      const auto needed = file.needed();
      info.cuda_major = cudart_major(needed);
      info.missing = missing_libraries(needed, lib);
      info.cuda_archs = find_archs(file);
    });
  }
  info.bellows_cuda = find_module(module_folder, lib);
  return info;
}

std::optional<fs::path> loaded_library(std::string_view file_name) {
  struct Search {
    std::string_view name;
    std::optional<fs::path> found;
  } search{file_name, std::nullopt};
  ::dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        const fs::path path = library->dlpi_name;
        if (path.filename() != wanted.name) return 0;
        wanted.found = path;
        return 1;
      },
      &search);
  return search.found;
}

CudaFacts cuda_facts(const LibTorchInfo& info, CudaDriver driver) {
  CudaFacts facts;
  facts.libtorch_cuda_on_disk = info.has_cuda;
  facts.libtorch_folder = info.root.string();
  facts.module_on_disk = !info.bellows_cuda.empty();
  facts.cuda_major = info.cuda_major;
  facts.archs = info.cuda_archs;
  if (!info.missing.empty()) {
    facts.loaded = false;
    facts.load_error = concat("libtorch_cuda.so needs ", join(info.missing), ", not found");
  }
  facts.driver = std::move(driver);
  return facts;
}

}  // namespace bellows
