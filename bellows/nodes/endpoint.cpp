#include "bellows/nodes/endpoint.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <ifaddrs.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bellows/core/text.h"

namespace bellows::nodes {
namespace {

using launch::Descriptor;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

constexpr int kConnectMilliseconds = 2000;
constexpr int kBacklog = 4096;

Addresses addresses(const char* host, int port, int& code) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  code = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  return {code == 0 ? found : nullptr, freeaddrinfo};
}

std::string numbers(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return text.data();
}

std::string own_end(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  return ::getsockname(socket, generic, &size) == 0 ? numbers(generic, size) : "";
}

/// Without waiting longer than that; false with errno.
bool connects(int socket, const addrinfo& to) {
  if (::connect(socket, to.ai_addr, to.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd entry{socket, POLLOUT, 0};
  if (::poll(&entry, 1, kConnectMilliseconds) != 1) {
    errno = ETIMEDOUT;
    return false;
  }
  int code = 0;
  socklen_t size = sizeof(code);
  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &code, &size);
  errno = code;
  return code == 0;
}

/// Not open with errno.
Descriptor listening(const addrinfo& at) {
  Descriptor socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.open()) return socket;
  const int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(socket.get(), at.ai_addr, at.ai_addrlen) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    const int code = errno;
    socket.close();
    errno = code;
  }
  return socket;
}

}  // namespace

std::optional<Listener> listen_at(const std::string& host, int port, bool any, int& code) {
  int unknown = 0;
  const Addresses found = addresses(host.c_str(), port, unknown);
  code = unknown == 0 ? EADDRNOTAVAIL : 0;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    Descriptor socket = listening(*one);
    if (socket.open()) return Listener{std::move(socket), numbers(one->ai_addr, one->ai_addrlen)};
    code = errno;
    if (code == EADDRINUSE) return std::nullopt;
  }
  if (!any) return std::nullopt;
  const Addresses all = addresses(nullptr, port, unknown);
  if (!all) return std::nullopt;
  Descriptor socket = listening(*all);
  code = errno;
  if (!socket.open()) return std::nullopt;
  return Listener{std::move(socket), ""};
}

std::optional<std::string> reach(const std::string& host, int port, std::string& why) {
  int unknown = 0;
  const Addresses found = addresses(host.c_str(), port, unknown);
  if (unknown != 0) why = concat("the name is not known (", ::gai_strerror(unknown), ")");
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    const Descriptor socket(
        ::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.open() && connects(socket.get(), *one)) return own_end(socket.get());
    why = std::strerror(errno);
  }
  return std::nullopt;
}

std::string interface_of(const std::string& address) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (numbers(each->ifa_addr, size) == address) return each->ifa_name;
  }
  return "";
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace bellows::nodes
