// What the launcher changes in its own process, and undoes.
#pragma once

#include <string>
#include <sys/resource.h>

namespace bellows::launch {

/// Started with closed standard streams, the next files opened would take their numbers: they are
/// opened on /dev/null.
void open_standard_streams();

/// As many descriptors as the machine allows, until destroyed.
class FileLimit {
 public:
  FileLimit();
  ~FileLimit();
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  /// The soft limit before.
  unsigned long before() const { return before_.rlim_cur; }

 private:
  rlimit before_{};
};

/// Orphans of the ranks become this process's children, until destroyed.
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;
};

/// So many random bytes of the kernel, hexadecimal. Throws EnvironmentError where it gives none.
std::string random_hex(size_t bytes);

}  // namespace bellows::launch
