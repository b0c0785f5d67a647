#include "bellows/parallel/store.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "bellows/core/agent_client.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/parallel/c10d_store.h"

namespace bellows::parallel {
namespace {

std::vector<uint8_t> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

/// A connection on which nothing is ever sent: it ends when the process that serves the store does.
class Watch {
 public:
  Watch(const std::string& host, int port);
  ~Watch() {
    if (socket_ >= 0) ::close(socket_);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  bool stands() const {
    pollfd state{socket_, POLLIN | POLLRDHUP, 0};
    return socket_ < 0 || ::poll(&state, 1, 0) == 0;
  }

 private:
  int socket_ = -1;
};

class C10dStore : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<Watch> watch = {})
      : store_(std::move(store)), watch_(std::move(watch)) {}
  const c10::intrusive_ptr<c10d::Store>& handle() const { return store_; }

  void set(const std::string& key, const std::string& value) override {
    store_->set(key, bytes(value));
  }
  std::string get(const std::string& key) override { return text_of(store_->get(key)); }
  std::vector<std::string> get_all(const std::vector<std::string>& keys) override {
    std::vector<std::string> values;
    for (const auto& value : store_->multiGet(keys)) values.push_back(text_of(value));
    return values;
  }
  bool has(const std::string& key) override { return store_->check({key}); }
  void append(const std::string& key, const std::string& value) override {
    store_->append(key, bytes(value));
  }
  void remove(const std::string& key) override { store_->deleteKey(key); }
  std::string exchange(const std::string& key, const std::string& expected,
                       const std::string& value) override {
    return text_of(store_->compareSet(key, bytes(expected), bytes(value)));
  }
  bool served() const override { return !watch_ || watch_->stands(); }
  std::shared_ptr<Store> below(const std::string& prefix) const override {
    return std::make_shared<C10dStore>(c10::make_intrusive<c10d::PrefixStore>(prefix, store_),
                                       watch_);
  }
  std::shared_ptr<Store> again() const override {
    return std::make_shared<C10dStore>(store_->clone(), watch_);
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Watch> watch_;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses addresses(const char* host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  const int code = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  if (code != 0) {
    throw EnvironmentError(concat("the address ", host == nullptr ? "*" : host,
                                  " (MASTER_ADDR) is not known: ", gai_strerror(code)));
  }
  return {found, freeaddrinfo};
}

/// Without it c10d tells of a server that has gone, at length.
Watch::Watch(const std::string& host, int port) {
  const Addresses found = addresses(host.c_str(), port);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    socket_ = ::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_ >= 0 && ::connect(socket_, one->ai_addr, one->ai_addrlen) == 0) return;
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
}

/// Bound; c10d's store listens on it. -1 with errno.
int bound_socket(const char* host, int port) {
  const Addresses found = addresses(host, port);
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(fd, found->ai_addr, found->ai_addrlen) == 0) return fd;
  const int code = errno;
  ::close(fd);
  errno = code;
  return -1;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

int listening_socket(const Place& place) {
  const char* port = std::getenv("MASTER_PORT");  // of the socket that the launcher holds
  if (port != nullptr && std::to_string(place.master_port) == port) {
    if (const auto held = agent::take_master_socket()) return *held;
  }
  const bool one_machine = place.local_world_size == place.world_size;
  int fd = -1;
  if (one_machine || !is_loopback(place.master_addr)) {
    fd = bound_socket(place.master_addr.c_str(), place.master_port);
  }
  // A name of a service, or the address before a translation of addresses.
  if (fd < 0 && !one_machine && (errno == EADDRNOTAVAIL || is_loopback(place.master_addr))) {
    fd = bound_socket(nullptr, place.master_port);
  }
  if (fd >= 0) return fd;
  throw EnvironmentError(
      concat("rank 0's store cannot listen on ", place.master_addr, " port ", place.master_port,
             " (MASTER_ADDR, MASTER_PORT): ", std::strerror(errno),
             "; name an address of the machine of rank 0 and a free port, or let `bellows launch "
             "--nproc-per-node 2 -- PROGRAM` choose one"));
}

}  // namespace

c10::intrusive_ptr<c10d::Store> c10d_store(const Store& store) {
  return dynamic_cast<const C10dStore&>(store).handle();
}

std::shared_ptr<Store> memory_store(std::chrono::milliseconds timeout) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(timeout);
  return std::make_shared<C10dStore>(std::move(store));
}

std::shared_ptr<Store> serve_store(int listening, const std::string& host, int port,
                                   std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.masterListenFd = listening;
  return std::make_shared<C10dStore>(c10::make_intrusive<c10d::TCPStore>(host, options));
}

std::shared_ptr<Store> connect_store(const std::string& host, int port,
                                     std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = timeout;
  auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
  return std::make_shared<C10dStore>(std::move(store), std::make_shared<Watch>(host, port));
}

std::shared_ptr<Store> network_store(const Place& place, std::chrono::milliseconds timeout) {
  const std::string& host = place.master_addr;
  if (place.rank != 0) return connect_store(host, place.master_port, timeout);
  return serve_store(listening_socket(place), host, place.master_port, timeout);
}

}  // namespace bellows::parallel
