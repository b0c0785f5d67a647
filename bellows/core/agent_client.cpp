#include "bellows/core/agent_client.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cxxabi.h>
#include <exception>
#include <fcntl.h>
#include <mutex>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <typeinfo>
#include <unistd.h>

#include "bellows/core/agent_protocol.h"

namespace bellows::agent {
namespace {

constinit std::atomic<int> channel{-1};
constinit std::atomic<int64_t> lost{0};
constinit std::atomic<int64_t> stop_seconds{-1};
constinit std::atomic<std::terminate_handler> handler_before{nullptr};

constexpr int kPatienceMilliseconds = 1000;

/// `patient`: waits a moment for room, for what must not be lost and is not part of training.
void send_now(Message message, bool patient = false) noexcept {
  const int fd = channel.load(std::memory_order_relaxed);
  if (fd < 0) return;
  const int error = errno;
  if (const int64_t count = lost.exchange(0); count > 0) message.lost = count;
  std::array<char, kLongestPacket> buffer;  // NOLINT: filled by encode
  const size_t size = encode(message, buffer);
  ssize_t sent = ::send(fd, buffer.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
  pollfd room{fd, POLLOUT, 0};
  if (sent < 0 && patient && ::poll(&room, 1, kPatienceMilliseconds) == 1) {
    sent = ::send(fd, buffer.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (sent < 0) lost += 1 + (message.lost > 0 ? message.lost : 0);
  errno = error;
}

/// The fields between colons; empty for what has another number of them.
std::array<std::string_view, 4> split(std::string_view text) {
  std::array<std::string_view, 4> fields;
  for (size_t i = 0; i < fields.size(); ++i) {
    const size_t colon = text.find(':');
    if ((colon == std::string_view::npos) != (i + 1 == fields.size())) return {};
    fields[i] = text.substr(0, colon);
    text.remove_prefix(colon == std::string_view::npos ? text.size() : colon + 1);
  }
  return fields;
}

template <class T>
std::optional<T> number(const char* text) {
  const std::string_view view = text == nullptr ? "" : text;
  T value{};
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (view.empty() || error != std::errc() || end != view.data() + view.size()) return {};
  return value;
}

template <class T>
std::optional<T> number(std::string_view text) {
  return number<T>(std::string(text).c_str());
}

int socket_option(int fd, int option) {
  int value = -1;
  socklen_t size = sizeof(value);
  return ::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

/// Inherited numbers may mean something else by now: another file under the same number.
bool is_channel(int fd, ino_t inode) {
  struct stat status {};
  return fd >= 0 && ::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) &&
         status.st_ino == inode && socket_option(fd, SO_TYPE) == SOCK_SEQPACKET;
}

/// LibTorch's errors carry a backtrace after their message.
std::string_view without_backtrace(std::string_view text) {
  const size_t trace = text.find("\nException raised from ");
  return trace == std::string_view::npos ? text : text.substr(0, trace);
}

void report_current_exception() noexcept {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return exception("std::terminate was called");
  try {
    throw;
  } catch (const std::exception& error) {
    exception(without_backtrace(error.what()));
  } catch (...) {
    exception(type->name());
  }
}

[[noreturn]] void on_terminate() {
  report_current_exception();
  if (const auto before = handler_before.load()) before();
  std::abort();
}

void say_bye() {
  Message message;
  message.kind = Kind::bye;
  send_now(message);
}

bool connect_once() {
  const char* variable = std::getenv(kVariable);
  if (variable == nullptr) return false;
  const auto [version, descriptor, inode, secret] = split(variable);
  const auto fd = number<int>(descriptor);
  const auto node = number<uint64_t>(inode);
  if (number<int64_t>(version) != kVersion || !fd || !node || !is_channel(*fd, *node)) return false;
  ::fcntl(*fd, F_SETFD, FD_CLOEXEC);
  channel = *fd;
  Message hello;
  hello.kind = Kind::hello;
  hello.version = kVersion;
  hello.rank = number<int64_t>(std::getenv("RANK")).value_or(-1);
  hello.pid = ::getpid();
  hello.secret = secret;
  send_now(hello, true);
  handler_before = std::set_terminate(on_terminate);
  std::atexit(say_bye);
  return true;
}

}  // namespace

bool connect() noexcept {
  static const bool connected = connect_once();
  return connected;
}

bool connected() noexcept {
  return channel.load(std::memory_order_relaxed) >= 0;
}

void phase(std::string_view name, int64_t step) noexcept {
  if (!connected()) return;
  Message message;
  message.kind = Kind::phase;
  message.name = name;
  message.step = step;
  send_now(message);
}

void collective(std::string_view name, int64_t sequence, int64_t bucket) noexcept {
  if (!connected()) return;
  Message message;
  message.kind = Kind::collective;
  message.name = name;
  message.sequence = sequence;
  message.bucket = bucket;
  send_now(message);
}

void collective_done(int64_t sequence) noexcept {
  if (!connected()) return;
  Message message;
  message.kind = Kind::done;
  message.sequence = sequence;
  send_now(message);
}

void exception(std::string_view text) noexcept {
  if (!connected()) return;
  Message message;
  message.kind = Kind::exception;
  message.text = text;
  send_now(message, true);
}

std::optional<std::chrono::seconds> stop_requested() noexcept {
  const int fd = channel.load(std::memory_order_relaxed);
  if (fd < 0) return std::nullopt;
  const int error = errno;
  std::array<char, kLongestPacket> buffer;  // NOLINT: filled by recv
  for (;;) {
    const ssize_t size = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size <= 0) break;
    const auto message = decode({buffer.data(), static_cast<size_t>(size)});
    if (message && message->kind == Kind::stop && message->seconds >= 0) {
      stop_seconds = message->seconds;
    }
  }
  errno = error;
  const int64_t seconds = stop_seconds;
  if (seconds < 0) return std::nullopt;
  return std::chrono::seconds(seconds);
}

std::optional<int> take_master_socket() noexcept {
  static std::atomic<bool> taken{false};
  const auto fd = number<int>(std::getenv("BELLOWS_MASTER_FD"));
  const auto port = number<uint16_t>(std::getenv("MASTER_PORT"));
  if (!fd || !port) return std::nullopt;
  sockaddr_in6 address{};  // large enough for IPv4; the port lies at the same place
  socklen_t size = sizeof(address);
  const bool ours = ::getsockname(*fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
                    (address.sin6_family == AF_INET || address.sin6_family == AF_INET6) &&
                    ntohs(address.sin6_port) == *port &&
                    socket_option(*fd, SO_TYPE) == SOCK_STREAM &&
                    socket_option(*fd, SO_ACCEPTCONN) == 0;
  if (!ours || taken.exchange(true)) return std::nullopt;
  ::fcntl(*fd, F_SETFD, FD_CLOEXEC);
  return *fd;
}

}  // namespace bellows::agent
