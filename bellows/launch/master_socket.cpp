#include "bellows/launch/master_socket.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::launch {
namespace {

[[noreturn]] void fail(const std::string& host, int port, int code) {
  std::string next = "name an address of this machine with --master-addr";
  if (code == EADDRINUSE) next = "leave out --master-port, and a free one is taken";
  if (code == EACCES) next = "take a --master-port above 1023";
  throw EnvironmentError(concat("rank 0's store cannot listen on ", host, " port ", port, ": ",
                                std::strerror(code), "; ", next));
}

}  // namespace

MasterSocket::MasterSocket(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    throw EnvironmentError(concat("the address of --master-addr ", host, " is not known: ",
                                  code == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  socket_ = Descriptor(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket_.open()) fail(host, port, errno);
  const int yes = 1;
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(socket_.get(), found->ai_addr, found->ai_addrlen) != 0) fail(host, port, errno);
  sockaddr_in6 address{};
  socklen_t size = sizeof(address);
  if (::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    fail(host, port, errno);
  }
  port_ = ntohs(address.sin6_port);
}

}  // namespace bellows::launch
