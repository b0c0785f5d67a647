// Which ranks are at fault when a collective has not been done: pure functions over what the ranks
// say of themselves in a roll call. Internal; standard library only. Ranks are those of the world.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bellows::parallel {

/// Where a rank stands in one group.
struct Answer {
  int64_t rank = 0;
  std::string group = {};
  int64_t begun = 0;      // the sequence number of its last collective
  bool closed = false;    // it has left the group
  int64_t ago_ms = 0;     // since that collective began or, where it has ended, since then
  std::string last = {};  // what its last collective was
  std::string at = {};    // what it called at the number asked about; empty: not yet, or long ago
};

/// One line; the reverse skips what it does not understand. The last line of a rank and group
/// counts.
std::string to_line(const Answer& answer);
std::vector<Answer> answers_from(const std::string& lines);

/// What a rank that fails tells.
struct Complaint {
  std::string group = {};
  std::vector<int64_t> members = {};
  int64_t sequence = 0;
  std::string what = {};             // its fingerprint
  bool timed_out = false;            // not: the connection failed
  bool names_all = false;            // also who is late where somebody is gone
  std::vector<int64_t> others = {};  // who takes part besides; empty: all members
};

struct Suspect {
  enum class Kind { silent, left, elsewhere, differs };
  int64_t rank = 0;
  Kind kind = Kind::silent;
  int64_t begun = 0;
  int64_t ago_ms = 0;
  std::string what = {};  // its last collective; what it called instead
};

struct Verdict {
  std::string group = {};
  int64_t sequence = 0;
  std::string what = {};  // what most ranks called
  std::vector<Suspect> suspects = {};
};

/// Whether each that takes part has answered.
bool complete(const Complaint& complaint, const std::vector<Answer>& answers);

/// Who has not answered or has left; where nobody, who called something else; where nobody and the
/// time was over, who has not come.
Verdict judge(const Complaint& complaint, const std::vector<Answer>& answers);

std::string to_text(const Verdict& verdict);
/// Throws ValueError.
Verdict verdict_from(const std::string& text);

/// "rank 2 was not heard from; rank 3 is elsewhere: its last collective was #11 (…), 41 s ago".
/// `self`: spoken of as "this rank".
std::string describe(const Verdict& verdict, int64_t self);

}  // namespace bellows::parallel
