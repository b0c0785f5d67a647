#include "cli/doctor.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "bellows/core/cuda_driver.h"
#include "bellows/core/cuda_state.h"
#include "bellows/core/error.h"
#include "bellows/core/exit_code.h"
#include "bellows/core/libtorch_info.h"
#include "bellows/core/text.h"
#include "bellows/launch/environment.h"
#include "cli/find_libtorch.h"

namespace bellows::cli {
namespace fs = std::filesystem;
namespace {

void section(const char* title) {
  std::cout << '\n' << title << '\n';
}

void fact(const std::string& name, const std::string& value) {
  std::cout << "  " << name << std::string(name.size() < 18 ? 18 - name.size() : 1, ' ') << value
            << '\n';
}

/// The value of the first line "key : value" of a file below /proc.
std::string proc_value(const char* file, const std::string& key) {
  std::ifstream input(file);
  for (std::string line; std::getline(input, line);) {
    if (!line.starts_with(key)) continue;
    const auto colon = line.find(':');
    const auto start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "unknown";
}

/// The instruction sets that LibTorch's kernels choose by.
std::string vector_extensions() {
  std::istringstream flags(proc_value("/proc/cpuinfo", "flags"));
  const std::array<std::string, 7> shown{"avx2",        "fma",      "avx512f", "avx512_vnni",
                                         "avx512_bf16", "amx_tile", "amx_bf16"};
  std::string found;
  for (std::string flag; flags >> flag;) {
    if (std::find(shown.begin(), shown.end(), flag) != shown.end())
      found += (found.empty() ? "" : " ") + flag;
  }
  return found.empty() ? "none of AVX2, AVX-512, AMX" : found;
}

std::string memory() {
  std::istringstream text(proc_value("/proc/meminfo", "MemTotal"));
  double kib = 0;
  text >> kib;
  return human_bytes(kib * 1024);
}

/// How many threads a rank has, LibTorch's and those that load data.
std::string threads_advice() {
  const int cores = bellows::launch::usable_cores();
  return concat("LibTorch takes ", cores, " in one rank; of R ranks `bellows launch` gives each ",
                cores,
                " / R, at least 1 (OMP_NUM_THREADS). data.workers come on top: set "
                "OMP_NUM_THREADS to ",
                cores, " / R - data.workers where both keep busy");
}

void print_machine() {
  section("Machine");
  utsname system{};
  uname(&system);
  fact("system", concat(system.sysname, " ", system.release, " ", system.machine));
  fact("processor", proc_value("/proc/cpuinfo", "model name"));
  fact("cores",
       concat(std::thread::hardware_concurrency(), ", usable ", bellows::launch::usable_cores()));
  fact("threads", threads_advice());
  fact("vector units", vector_extensions());
  fact("memory", memory());
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  fact("open files", concat("at most ", files.rlim_cur));
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    fact("shared memory",
         human_bytes(static_cast<double>(shm.f_bavail) * static_cast<double>(shm.f_frsize)) +
             " free");
  }
}

/// Facts of the LibTorch found, or nothing when training is impossible with it.
std::optional<LibTorchInfo> print_libtorch(const LibTorchSearch& search) {
  section("LibTorch");
  if (!search.root) {
    fact("state", "not found; looked at");
    for (const auto& place : search.looked_at) std::cout << "    " << place << '\n';
    fact("remedy", "make setup in the source tree, or name its folder with --libtorch or LIBTORCH");
    return std::nullopt;
  }
  fact("folder", search.root->string() + " (" + search.source + ")");
  try {
    auto info = inspect_libtorch(*search.root);
    fact("version", info.version.empty() ? "unknown" : info.version);
    fact("C++ ABI", std::string(to_string(info.abi)));
    fact("build", info.has_cuda ? concat("CUDA ", info.cuda_major) : "CPU");
    for (const auto& sentence : info.damaged) fact("damaged", sentence);
    if (const auto damage = damage_of(*search.root)) fact("damaged", *damage);
    if (const auto mismatch = mismatch_of(*search.root)) fact("unfit", *mismatch);
    if (!info.missing.empty())
      fact("missing", join(info.missing) + " (needed by libtorch_cuda.so)");
    return info;
  } catch (const Error& error) {
    fact("state", error.what());
    return std::nullopt;
  }
}

/// What `bellows-torch devices` printed: lines of fields between tabs.
struct DeviceReport {
  std::vector<std::vector<std::string>> lines;
  std::string failure;  // what it printed where it does not run
  bool runs = false;
};

DeviceReport ask_bellows_torch(const std::string& libtorch) {
  DeviceReport report;
  std::string command = "'" + (program_folder() / "bellows").string() + "'";
  if (!libtorch.empty()) command += " --libtorch '" + libtorch + "'";
  command += " devices 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return report;
  std::array<char, 4096> line{};
  while (std::fgets(line.data(), line.size(), pipe)) {
    std::istringstream text(line.data());
    std::vector<std::string> fields;
    for (std::string field; std::getline(text, field, '\t');) fields.push_back(field);
    if (fields.size() >= 4) {
      fields.back().erase(fields.back().find_last_not_of('\n') + 1);
      report.lines.push_back(fields);
    } else {
      report.failure += line.data();
    }
  }
  const int status = pclose(pipe);
  report.runs = WIFEXITED(status) && WEXITSTATUS(status) == 0 && !report.lines.empty();
  return report;
}

/// The state as bellows-torch has it where that runs, else judged from what lies on disk.
void print_cuda(const LibTorchInfo& info, const DeviceReport& report) {
  section("CUDA");
  const CudaDriver driver = probe_cuda_driver();
  if (driver.library && driver.version > 0) {
    fact("driver",
         concat("for CUDA up to ", driver.version / 1000, ".", driver.version % 1000 / 10));
  }
  for (const auto& device : driver.devices) {
    fact("device", concat(device.name, ", ", human_bytes(static_cast<double>(device.memory_bytes)),
                          ", compute capability ", device.major, ".", device.minor));
  }
  std::vector<std::string> state;
  for (const auto& line : report.lines) {
    if (report.runs && line[0] == "state") state = line;
  }
  if (state.empty()) {
    const CudaReport judged = cuda_state(cuda_facts(info, driver));
    state = {"state", std::string(to_string(judged.state)), judged.sentence, judged.remedy};
  }
  fact("state", state[1] + ": " + state[2]);
  if (!state[3].empty()) fact("remedy", state[3]);
}

void print_devices(const DeviceReport& report) {
  section("Devices that training can use");
  for (const auto& line : report.lines) {
    if (report.runs && line[0] != "state") {
      fact(line[0], line[1] + ", " + human_bytes(std::strtod(line[2].c_str(), nullptr)));
    }
  }
  if (!report.runs) fact("state", "bellows-torch does not run: " + report.failure);
}

}  // namespace

int doctor(const std::vector<std::string>& arguments, const std::string& libtorch) {
  if (!arguments.empty()) {
    const bool help = arguments[0] == "--help" || arguments[0] == "-h";
    (help ? std::cout : std::cerr)
        << (help ? "" : "bellows doctor: takes no arguments, got '" + arguments[0] + "'\n")
        << "Usage: bellows [--libtorch DIR] doctor\n\n"
           "Prints what this machine, its LibTorch and its devices are like. Exit code 0\n"
           "when training works here, at least on the CPU, else 3.\n";
    return help ? 0 : static_cast<int>(ExitCode::usage);
  }
  std::cout << "Bellows " BELLOWS_VERSION << " in " << program_folder().string() << '\n';
  print_machine();
  const auto search = find_libtorch(libtorch);
  const auto info = print_libtorch(search);
  if (!info) return static_cast<int>(ExitCode::environment);
  std::cout << std::flush;
  const DeviceReport report = ask_bellows_torch(libtorch);
  print_cuda(*info, report);
  print_devices(report);
  std::cout << std::flush;
  return report.runs ? 0 : static_cast<int>(ExitCode::environment);
}

}  // namespace bellows::cli
