// The port of rank 0's store, held from before the ranks start: bound, so that nobody else is given
// it, and not listening, so that rank 0 may bind it as well if it does not take this descriptor.
#pragma once

#include <string>

#include "bellows/launch/descriptor.h"

namespace bellows::launch {

class MasterSocket {
 public:
  /// Port 0: a free one. Throws EnvironmentError for a host that is not known or not of this
  /// machine, and for a port where somebody listens.
  MasterSocket(const std::string& host, int port);
  int port() const { return port_; }
  int fd() const { return socket_.get(); }
  /// Once rank 0 has gone: who connects then is refused and does not wait.
  void close() { socket_.close(); }

 private:
  Descriptor socket_;
  int port_ = 0;
};

}  // namespace bellows::launch
