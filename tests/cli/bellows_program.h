// The shipped `bellows`, run as a user runs it.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/support/idx_files.h"
#include "tests/support/process.h"

namespace bellows::testing {

inline std::map<std::string, std::string> with_libtorch(
    std::map<std::string, std::string> environment = {}) {
  environment.emplace("LIBTORCH", TEST_LIBTORCH);
  return environment;
}

inline std::vector<std::string> bellows_words(std::vector<std::string> words) {
  words.insert(words.begin(), BELLOWS_PROGRAM);
  return words;
}

inline ProcessResult bellows(std::vector<std::string> words,
                             std::map<std::string, std::string> environment = {},
                             const std::filesystem::path& directory = {}) {
  return run(bellows_words(std::move(words)), with_libtorch(std::move(environment)), directory);
}

/// A folder with a small image set, and a configuration of an MLP that learns it: 40 batches an
/// epoch.
class SmallRun {
 public:
  SmallRun() {
    write_image_set(folder_ / "data", 640, 100);
    std::ofstream(config())
        << "[run]\nname = \"small\"\nseed = 3\nepochs = 2\ndevice = \"cpu\"\nthreads = "
           "1\nlog_every = 10\n"
           "[data]\ndataset = \"mnist\"\nroot = \""
        << (folder_ / "data").string()
        << "\"\nbatch_size = 16\n"
           "[model]\nname = \"mlp\"\nhidden = [32]\n[optim]\nname = \"adamw\"\nlr = 1e-3\n";
  }
  std::string config() const { return (folder_ / "small.toml").string(); }
  std::filesystem::path data() const { return folder_ / "data"; }
  std::filesystem::path folder() const { return folder_.path(); }
  std::string run_folder(const std::string& name = "run") const {
    return (folder_ / name).string();
  }
  std::vector<std::string> words(std::vector<std::string> more = {},
                                 const std::string& run = "run") const {
    std::vector<std::string> all{"train", config(), "--run", run_folder(run)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProcessResult train(std::vector<std::string> more = {}, const std::string& run = "run") const {
    return bellows(words(std::move(more), run));
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace bellows::testing
