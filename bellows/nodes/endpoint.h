// Where the nodes of a job meet: sockets and addresses.
#pragma once

#include <optional>
#include <string>

#include "bellows/launch/descriptor.h"

namespace bellows::nodes {

/// A socket that listens.
struct Listener {
  launch::Descriptor socket;
  std::string address;  // as numbers; empty: all of this machine's
};

/// Listens at host and port, and there alone; or at `any` address where that one is not this
/// machine's. Nothing where host is not known, not of this machine, or the port is taken: `code` is
/// the errno, or 0 for a host that is not known.
std::optional<Listener> listen_at(const std::string& host, int port, bool any, int& code);

/// Connects and hangs up. The address by which this machine reaches the other; or nothing, and
/// `why`. Takes at most two seconds.
std::optional<std::string> reach(const std::string& host, int port, std::string& why);

/// The network interface that has the address; empty where none has.
std::string interface_of(const std::string& address);

std::string host_name();

}  // namespace bellows::nodes
