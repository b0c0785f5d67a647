#include "tests/nodes/network.h"

#include <array>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdexcept>
#include <sys/ioctl.h>

namespace bellows::testing {
namespace {

using Steady = std::chrono::steady_clock;

void ip(const Words& words) {
  const auto result = run(Words{"ip"} + words);
  if (result.exit_code != 0) throw std::runtime_error("ip " + words.at(0) + ": " + result.err);
}

/// The end that this process holds of an interface `eth0` in that namespace.
int tap_in(const std::string& name) {
  int tap = -1;
  std::thread thread([&] {  // a thread may be in another namespace than the others
    const int space = ::open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
    if (space < 0 || ::setns(space, CLONE_NEWNET) != 0) return;
    ::close(space);
    tap = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    ifreq request{};
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    std::strcpy(request.ifr_name, "eth0");
    if (tap >= 0 && ::ioctl(tap, TUNSETIFF, &request) != 0) {
      ::close(tap);
      tap = -1;
    }
  });
  thread.join();
  if (tap < 0) throw std::runtime_error("no tap in " + name);
  return tap;
}

}  // namespace

std::string no_namespaces() {
  if (::geteuid() != 0) return "needs root, for network namespaces";
  const std::string name = "bellows-probe-" + std::to_string(::getpid());
  const auto result = run({"sh", "-c", "ip netns add " + name + " && ip netns del " + name});
  return result.exit_code == 0 ? "" : "no network namespaces here: " + result.err;
}

Namespaces::Namespaces(int nodes) : nodes_(nodes) {
  static int count = 0;
  prefix_ = "bellows-" + std::to_string(::getpid()) + "-" + std::to_string(count++) + "-";
  for (int node = 0; node < nodes_; ++node) {
    ip({"netns", "add", name(node)});
    ip({"-n", name(node), "link", "set", "lo", "up"});
  }
}

Namespaces::~Namespaces() {
  for (int node = 0; node < nodes_; ++node) run({"ip", "netns", "del", name(node)});
}

void Namespaces::configure(int node) const {
  ip({"-n", name(node), "address", "add", address(node) + "/24", "dev", "eth0"});
  ip({"-n", name(node), "link", "set", "eth0", "up"});
}

Network::Network(int nodes) : Namespaces(nodes + 1), switch_(nodes) {
  ip({"-n", name(switch_), "link", "add", "br0", "type", "bridge"});
  ip({"-n", name(switch_), "link", "set", "br0", "up"});
  for (int node = 0; node < nodes; ++node) {
    const std::string port = "port" + std::to_string(node);
    ip({"-n", name(switch_), "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns",
        name(node)});
    ip({"-n", name(switch_), "link", "set", port, "master", "br0", "up"});
    configure(node);
  }
}

void Network::cut(int node) const {
  ip({"-n", name(switch_), "link", "set", "port" + std::to_string(node), "down"});
}

Cable::Cable() : Namespaces(2) {
  for (int node = 0; node < 2; ++node) {
    ends_[node] = tap_in(name(node));
    configure(node);
  }
  there_ = std::thread([this] { carry(ends_[0], ends_[1]); });
  back_ = std::thread([this] { carry(ends_[1], ends_[0]); });
}

Cable::~Cable() {
  over_ = true;
  there_.join();
  back_.join();
  for (const int end : ends_) ::close(end);
}

void Cable::carry(int from, int to) const {
  struct Packet {
    Steady::time_point due;
    std::vector<char> bytes;
  };
  std::deque<Packet> queue;
  std::array<char, 65536> buffer{};
  while (!over_) {
    pollfd entry{from, POLLIN, 0};
    if (::poll(&entry, 1, queue.empty() || stalled_ ? 20 : 1) == 1) {
      const ssize_t size = ::read(from, buffer.data(), buffer.size());
      if (size > 0) {
        queue.push_back({Steady::now() + std::chrono::milliseconds(delay_),
                         {buffer.data(), buffer.data() + size}});
      }
    }
    while (!stalled_ && !queue.empty() && queue.front().due <= Steady::now()) {
      const auto& bytes = queue.front().bytes;
      if (::write(to, bytes.data(), bytes.size()) < 0 && errno == EAGAIN) break;
      queue.pop_front();
    }
  }
}

}  // namespace bellows::testing
