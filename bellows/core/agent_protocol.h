// The messages between a rank and its launcher: one packet of a SOCK_SEQPACKET Unix socket each,
// text of the form "KIND key=value key=value" and, after a line feed, free text. The contract is
// docs/agent-channel.md. Both sides keep to this file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace bellows::agent {

inline constexpr int64_t kVersion = 1;
/// Bytes of the longest packet; longer ones are refused.
inline constexpr size_t kLongestPacket = 8192;
/// Environment variable of a rank: "VERSION:DESCRIPTOR:INODE:SECRET", the last one hexadecimal.
inline constexpr const char* kVariable = "BELLOWS_AGENT";

enum class Kind {
  hello,       // version, rank, pid, secret: the first message
  phase,       // name, step
  collective,  // name, sequence, bucket: has begun
  done,        // sequence: that collective has ended
  exception,   // text: the exception that ends the process
  bye,         // the process ends as its program wishes
  stop,        // launcher to rank: save and end within so many seconds
};

/// What is absent is -1 or empty. The views point into the packet.
struct Message {
  Kind kind = Kind::bye;
  int64_t version = -1;
  int64_t rank = -1;
  int64_t pid = -1;
  int64_t step = -1;
  int64_t sequence = -1;
  int64_t bucket = -1;
  int64_t seconds = -1;
  int64_t lost = -1;  // messages that found no room since the last one that did
  std::string_view secret;
  std::string_view name;
  std::string_view text;
};

/// Writes the packet and returns its length. Names are cut at 64 bytes, and what is not a letter,
/// a digit or one of _.:/+- becomes '_'; text is cut where the buffer ends. Allocates nothing and
/// takes no lock: may be called from a signal handler. `buffer` holds at least 512 bytes.
size_t encode(const Message& message, std::span<char> buffer) noexcept;

/// Nothing for what is no message: an unknown kind, a number that is none or below 0, a longer name
/// than 64 bytes. Unknown keys are passed over, so that later versions may add some.
std::optional<Message> decode(std::string_view packet) noexcept;

}  // namespace bellows::agent
