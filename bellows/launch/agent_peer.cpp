#include "bellows/launch/agent_peer.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <poll.h>
#include <sys/socket.h>

#include "bellows/core/agent_protocol.h"
#include "bellows/core/text.h"

namespace bellows::launch {
namespace {

constexpr int kPacketsAtOnce = 256;

std::string ago(Clock::Duration since) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "for %.1f s", seconds_since(since));
  return text.data();
}

/// Whether nobody holds the other end any more: an empty packet reads the same.
bool hung_up(int socket) {
  pollfd entry{socket, 0, 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & (POLLHUP | POLLERR)) != 0;
}

}  // namespace

int AgentPeer::drain() {
  std::array<char, agent::kLongestPacket> buffer;  // NOLINT: filled by recv
  int packets = 0;
  while (socket_.open() && packets < kPacketsAtOnce) {
    const ssize_t size =
        ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (size < 0 || (size == 0 && hung_up(socket_.get()))) {
      socket_.close();
      break;
    }
    ++packets;
    if (size == 0 || static_cast<size_t>(size) > buffer.size()) {
      ++refused_;
    } else {
      take({buffer.data(), static_cast<size_t>(size)});
    }
  }
  return packets;
}

void AgentPeer::drain_all() {
  constexpr int kMost = 100'000;
  for (int packets = 0; packets < kMost;) {
    const int more = drain();
    if (more == 0) break;
    packets += more;
  }
}

void AgentPeer::take(std::string_view packet) {
  const auto message = agent::decode(packet);
  if (!message) {
    ++refused_;
    return;
  }
  if (message->kind == agent::Kind::hello) {
    if (message->secret != secret_ || message->rank != rank_) {
      ++refused_;
    } else if (message->version != agent::kVersion) {
      other_version_ = message->version;
    } else {
      known_ = true;
      left_ = false;
    }
    return;
  }
  if (!known_) {
    ++refused_;
    return;
  }
  if (message->lost > 0) lost_ += message->lost;
  const Clock::Duration now = monotonic_clock().now();
  switch (message->kind) {
    case agent::Kind::phase:
      phase_ = {std::string(message->name), message->step, -1, now};
      break;
    case agent::Kind::collective:
      collective_ = {std::string(message->name), message->sequence, message->bucket, now};
      break;
    case agent::Kind::done:
      if (message->sequence >= collective_.number) collective_.name.clear();
      break;
    case agent::Kind::exception:
      exception_ = message->text;
      exception_time_ = now;
      break;
    case agent::Kind::bye:
      left_ = true;
      break;
    case agent::Kind::hello:
    case agent::Kind::stop:
      ++refused_;
      break;
  }
}

void AgentPeer::ask_to_stop(std::chrono::seconds within) const {
  if (!known_ || !socket_.open()) return;
  agent::Message message;
  message.kind = agent::Kind::stop;
  message.seconds = within.count();
  std::array<char, 512> buffer{};
  const size_t size = agent::encode(message, buffer);
  // A rank that never reads has a full socket: it gets the signal as well.
  (void)::send(socket_.get(), buffer.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

std::string AgentPeer::describe() const {
  std::string text;
  const auto add = [&](const std::string& words) { text += (text.empty() ? "" : "; ") + words; };
  if (!known_ && other_version_ >= 0) {
    add(concat("speaks version ", other_version_, " of the agent channel, this launcher ",
               agent::kVersion));
  } else if (!known_) {
    add("has not said what it is doing");
  } else if (left_) {
    add("leaving");
  } else if (phase_.name.empty() && collective_.name.empty()) {
    add("has not named a phase yet");
  }
  if (!phase_.name.empty() && !left_) {
    add(concat(phase_.name, phase_.number >= 0 ? concat(" of step ", phase_.number) : "", " ",
               ago(phase_.since)));
  }
  if (!collective_.name.empty() && !left_) {
    add(concat("in ", collective_.name, " number ", collective_.number,
               collective_.bucket >= 0 ? concat(" of bucket ", collective_.bucket) : "", " ",
               ago(collective_.since)));
  }
  if (lost_ > 0) add(concat(lost_, " messages lost"));
  if (refused_ > 0) add(concat(refused_, " messages refused"));
  return text;
}

}  // namespace bellows::launch
