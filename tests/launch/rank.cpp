// A rank for tests of `bellows launch`, without LibTorch: rank WORD…, one word an act, in order.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "bellows/core/agent_client.h"
#include "bellows/core/agent_protocol.h"

namespace {

using namespace bellows;

int descriptor() {
  const std::string variable = std::getenv(agent::kVariable);
  return std::atoi(variable.c_str() + variable.find(':') + 1);
}

void send_raw(const std::string& bytes) {
  (void)::send(descriptor(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool is_rank(const char* number) {
  const char* rank = std::getenv("RANK");
  return rank != nullptr && std::strcmp(rank, number) == 0;
}

void flood() {
  for (int i = 0; i < 200'000; ++i) agent::phase("flood", i);
}

void many_threads() {
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([number] {
      for (int i = 0; i < 2'000; ++i) agent::collective("all_reduce", i, number);
    });
  }
  for (auto& thread : threads) thread.join();
}

/// Whatever somebody may write to the socket, before and after a proper hello.
void garbage() {
  unsigned seed = 7;
  const auto draw = [&] { return seed = seed * 1664525 + 1013904223; };
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(draw() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(draw() >> 24);
    send_raw(bytes);
  }
  send_raw(std::string(100'000, 'x'));
  send_raw("");
  send_raw("hello version=1 rank=0 secret=0123");
  send_raw("phase name=forged step=1");
}

void wait_for_stop() {
  while (!agent::stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::cout << "asked to stop within " << agent::stop_requested()->count() << std::endl;
}

void act(const std::string& word) {
  if (word == "connect") std::cout << (agent::connect() ? "connected" : "alone") << std::endl;
  if (word == "phase") agent::phase("forward", 12);
  if (word == "collective") agent::collective("all_reduce", 57, 3);
  if (word == "done") agent::collective_done(57);
  if (word == "flood") flood();
  if (word == "threads") many_threads();
  if (word == "garbage") garbage();
  if (word == "other-version") send_raw("hello version=9 rank=0");
  if (word == "ready") std::cout << "ready" << std::endl;
  if (word == "hang") std::this_thread::sleep_for(std::chrono::seconds(100));
  if (word == "wait-for-stop") wait_for_stop();
  if (word == "save") std::exit(75);
  if (word == "throw") throw std::runtime_error("bad data row 12");
  if (word == "throw-on-1" && is_rank("1")) throw std::runtime_error("bad data row 12");
  if (word == "report-and-linger-on-1" && is_rank("1")) {
    agent::exception("bad data row 12");
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    std::exit(9);
  }
  if (word == "notice") {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    agent::exception("connection reset by peer");
    std::exit(1);
  }
  if (word == "throw-number") throw 42;
  if (word == "exec") ::execl("/proc/self/exe", "rank", "connect", nullptr);
  if (word == "master") {
    const auto socket = agent::take_master_socket();
    const bool again = agent::take_master_socket().has_value();
    std::cout << (socket && ::listen(*socket, 5) == 0 ? "listens" : "has none") << again
              << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) act(argv[i]);
}
