// One rank's standard output or error on its way to the console: cut into whole lines, each with
// the rank's prefix, the bytes unaltered.
#pragma once

#include <string>
#include <string_view>

namespace bellows::launch {

/// Lines of up to 16 MiB are whole; a longer one is passed on in pieces.
class LineStream {
 public:
  explicit LineStream(std::string prefix) : prefix_(std::move(prefix)) {}
  /// Appends to `out` the lines that `bytes` complete.
  void feed(std::string_view bytes, std::string& out);
  /// Appends what a progress bar has written so far: all up to the last carriage return. For a
  /// stream that has been silent for a moment.
  void show_progress(std::string& out);
  bool has_progress() const { return partial_.find('\r') != std::string::npos; }
  /// Appends what is left; a line feed is added where the last line has none.
  void finish(std::string& out);

 private:
  std::string prefix_, partial_;
};

/// The last bytes that a stream carried.
class Tail {
 public:
  void feed(std::string_view bytes);
  /// The last `count` lines, long ones cut; without line feeds.
  std::string lines(int count, std::string_view before_each) const;
  bool empty() const { return bytes_.empty(); }

 private:
  std::string bytes_;
};

}  // namespace bellows::launch
