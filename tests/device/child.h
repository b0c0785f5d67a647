// Running device_probe in an environment of its own.
#pragma once

#include <cstdio>
#include <string>
#include <sys/wait.h>

#include <gtest/gtest.h>

namespace bellows {

inline const std::string kStubDriver = TEST_STUB_DRIVER;  // the folder of the stub libcuda.so.1

/// Runs `environment device_probe commands`, e.g. ("STUB_CUDA_DEVICES=2", "init auto"); standard
/// error included.
inline std::string probe(const std::string& environment, const std::string& commands) {
  const std::string line =
      "env " + environment + " " + TEST_DEVICE_PROBE + " " + commands + " 2>&1";
  FILE* pipe = ::popen(line.c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  std::string out;
  char buffer[4096];
  while (const size_t got = std::fread(buffer, 1, sizeof(buffer), pipe)) out.append(buffer, got);
  const int status = ::pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << line << "\n" << out;
  return out;
}

/// With the stub driver in front of any real one.
inline std::string probe_with_stub(const std::string& environment, const std::string& commands) {
  return probe("LD_LIBRARY_PATH=" + kStubDriver + " " + environment, commands);
}

}  // namespace bellows
