#include "bellows/launch/own_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "bellows/core/error.h"

namespace bellows::launch {

void open_standard_streams() {
  for (int fd = 0; fd < 3; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    const int null = ::open("/dev/null", O_RDWR);
    if (null >= 0 && null != fd) ::dup2(null, fd);
  }
}

FileLimit::FileLimit() {
  ::getrlimit(RLIMIT_NOFILE, &before_);
  rlimit raised = before_;
  raised.rlim_cur = raised.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &raised);
}

FileLimit::~FileLimit() {
  ::setrlimit(RLIMIT_NOFILE, &before_);
}

Subreaper::Subreaper() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Subreaper::~Subreaper() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

std::string random_hex(size_t bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    unsigned char byte = 0;
    if (::getrandom(&byte, 1, 0) != 1) throw EnvironmentError("the kernel gives no random numbers");
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

}  // namespace bellows::launch
