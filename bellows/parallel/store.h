// What ranks leave for each other: c10d's key-value store, without its headers. Internal.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bellows/parallel/place.h"

namespace bellows::parallel {

/// Any thread. Errors of the connection are LibTorch's. A call may block for as long as the process
/// that serves the store is stopped.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Blocks until the key is there, at most for the store's time-out.
  virtual std::string get(const std::string& key) = 0;
  /// The same for several at once.
  virtual std::vector<std::string> get_all(const std::vector<std::string>& keys) = 0;
  virtual bool has(const std::string& key) = 0;
  virtual void append(const std::string& key, const std::string& value) = 0;
  virtual void remove(const std::string& key) = 0;
  /// Puts `value` where the key holds `expected` (empty: where it is not there); what it holds
  /// then.
  virtual std::string exchange(const std::string& key, const std::string& expected,
                               const std::string& value) = 0;
  /// False once the process that serves the store has gone: c10d would write a page on standard
  /// error if it were asked then. Never blocks.
  virtual bool served() const = 0;
  /// The same keys below a name of their own.
  virtual std::shared_ptr<Store> below(const std::string& prefix) const = 0;
  /// The same store over another connection.
  virtual std::shared_ptr<Store> again() const = 0;
};

/// Of one process, for ranks that are threads.
std::shared_ptr<Store> memory_store(std::chrono::milliseconds timeout);

/// Rank 0 serves it, at the place's address: on the socket that the launcher holds, where it does.
/// On one machine it listens at that address alone; over several at all, where the address is not
/// one of this machine. The others wait for it, as long as the time-out. Throws EnvironmentError
/// where the port is taken.
std::shared_ptr<Store> network_store(const Place& place, std::chrono::milliseconds timeout);

/// Served by this process on `listening`, a socket at host and port, which is taken over.
std::shared_ptr<Store> serve_store(int listening, const std::string& host, int port,
                                   std::chrono::milliseconds timeout);
/// Served by another process. `timeout` is that of the connection too.
std::shared_ptr<Store> connect_store(const std::string& host, int port,
                                     std::chrono::milliseconds timeout);

}  // namespace bellows::parallel
