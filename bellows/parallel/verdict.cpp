#include "bellows/parallel/verdict.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>

#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::parallel {
namespace {

/// Fields are parted by tabs, records by line feeds.
std::string field(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<int64_t> number(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

const Answer* find(const std::vector<Answer>& answers, int64_t rank, const std::string& group) {
  const auto found = std::ranges::find_if(
      answers, [&](const Answer& answer) { return answer.rank == rank && answer.group == group; });
  return found == answers.end() ? nullptr : &*found;
}

bool answered(const std::vector<Answer>& answers, int64_t rank) {
  return std::ranges::any_of(answers, [&](const Answer& a) { return a.rank == rank; });
}

const std::vector<int64_t>& asked(const Complaint& complaint) {
  return complaint.others.empty() ? complaint.members : complaint.others;
}

/// What most have called at the number in question; of two, the one of the lower rank.
std::string usual_call(const Complaint& complaint, const std::vector<Answer>& answers) {
  std::map<std::string, int64_t> votes;
  std::string best = complaint.what;
  int64_t most = 0;
  for (const int64_t rank : complaint.members) {
    const Answer* answer = find(answers, rank, complaint.group);
    if (answer != nullptr && !answer->at.empty()) ++votes[answer->at];
  }
  for (const int64_t rank : complaint.members) {
    const Answer* answer = find(answers, rank, complaint.group);
    if (answer == nullptr || answer->at.empty() || votes[answer->at] <= most) continue;
    most = votes[answer->at];
    best = answer->at;
  }
  return best;
}

Suspect suspect_of(int64_t rank, Suspect::Kind kind, const Answer* answer) {
  Suspect suspect{.rank = rank, .kind = kind};
  if (answer == nullptr) return suspect;
  suspect.begun = answer->begun;
  suspect.ago_ms = answer->ago_ms;
  suspect.what = kind == Suspect::Kind::differs ? answer->at : answer->last;
  return suspect;
}

std::string ago(int64_t milliseconds) {
  if (milliseconds < 10'000) return concat(milliseconds / 1000, ".", milliseconds / 100 % 10, " s");
  return concat(milliseconds / 1000, " s");
}

std::string last_of(const Suspect& suspect) {
  if (suspect.begun == 0) return "it has begun no collective";
  return concat("its last collective was #", suspect.begun,
                suspect.what.empty() ? "" : " (" + suspect.what + ")", ", ", ago(suspect.ago_ms),
                " ago");
}

std::string describe(const Suspect& suspect, const std::string& name) {
  switch (suspect.kind) {
    case Suspect::Kind::silent:
      return name + " was not heard from";
    case Suspect::Kind::left:
      return concat(name, " has left the group: ", last_of(suspect));
    case Suspect::Kind::elsewhere:
      return concat(name, " is elsewhere: ", last_of(suspect));
    case Suspect::Kind::differs:
      return concat(name, " called ", suspect.what);
  }
  return name;
}

}  // namespace

std::string to_line(const Answer& answer) {
  return concat(answer.rank, "\t", field(answer.group), "\t", answer.begun, "\t",
                answer.closed ? 1 : 0, "\t", answer.ago_ms, "\t", field(answer.last), "\t",
                field(answer.at), "\n");
}

std::vector<Answer> answers_from(const std::string& lines) {
  std::map<std::pair<int64_t, std::string>, Answer> latest;
  for (const auto& line : split(lines, '\n')) {
    const auto fields = split(line, '\t');
    if (fields.size() != 7) continue;
    const auto rank = number(fields[0]), begun = number(fields[2]), ago_ms = number(fields[4]);
    if (!rank || !begun || !ago_ms) continue;
    latest[{*rank, fields[1]}] = {*rank,   fields[1], *begun,   fields[3] == "1",
                                  *ago_ms, fields[5], fields[6]};
  }
  std::vector<Answer> answers;
  for (auto& [key, answer] : latest) answers.push_back(std::move(answer));
  return answers;
}

bool complete(const Complaint& complaint, const std::vector<Answer>& answers) {
  return std::ranges::all_of(asked(complaint),
                             [&](int64_t rank) { return answered(answers, rank); });
}

Verdict judge(const Complaint& complaint, const std::vector<Answer>& answers) {
  using Kind = Suspect::Kind;
  const std::string group = field(complaint.group);
  Complaint named = complaint;
  named.group = group;
  Verdict verdict{complaint.group, complaint.sequence, usual_call(named, answers), {}};
  std::vector<Suspect> gone, different, late;
  for (const int64_t rank : asked(complaint)) {
    const Answer* answer = find(answers, rank, group);
    if (!answered(answers, rank)) {
      gone.push_back(suspect_of(rank, Kind::silent, nullptr));
    } else if (answer == nullptr) {
      late.push_back(suspect_of(rank, Kind::elsewhere, nullptr));
    } else if (answer->closed) {
      gone.push_back(suspect_of(rank, Kind::left, answer));
    } else if (!answer->at.empty() && answer->at != verdict.what) {
      different.push_back(suspect_of(rank, Kind::differs, answer));
    } else if (answer->begun < complaint.sequence || !complaint.others.empty()) {
      late.push_back(suspect_of(rank, Kind::elsewhere, answer));
    }
  }
  if (!gone.empty()) {
    verdict.suspects = gone;
    if (complaint.names_all)
      verdict.suspects.insert(verdict.suspects.end(), late.begin(), late.end());
  } else if (!different.empty()) {
    verdict.suspects = different;
  } else if (complaint.timed_out || !complaint.others.empty()) {
    verdict.suspects = late;
  }
  std::ranges::sort(verdict.suspects, {}, &Suspect::rank);
  return verdict;
}

std::string to_text(const Verdict& verdict) {
  std::string text =
      concat(field(verdict.group), "\t", verdict.sequence, "\t", field(verdict.what), "\n");
  for (const auto& suspect : verdict.suspects) {
    text += concat(suspect.rank, "\t", static_cast<int>(suspect.kind), "\t", suspect.begun, "\t",
                   suspect.ago_ms, "\t", field(suspect.what), "\n");
  }
  return text;
}

Verdict verdict_from(const std::string& text) {
  const auto lines = split(text, '\n');
  const auto head = split(lines.front(), '\t');
  const auto sequence = head.size() == 3 ? number(head[1]) : std::nullopt;
  if (!sequence) throw ValueError("the ranks' verdict in the store is unreadable");
  Verdict verdict{head[0], *sequence, head[2], {}};
  for (size_t i = 1; i < lines.size(); ++i) {
    const auto fields = split(lines[i], '\t');
    if (fields.size() != 5) continue;
    const auto rank = number(fields[0]), kind = number(fields[1]), begun = number(fields[2]),
               ago_ms = number(fields[3]);
    if (!rank || !kind || *kind < 0 || *kind > 3 || !begun || !ago_ms) continue;
    verdict.suspects.push_back(
        {*rank, static_cast<Suspect::Kind>(*kind), *begun, *ago_ms, fields[4]});
  }
  return verdict;
}

std::string describe(const Verdict& verdict, int64_t self) {
  if (verdict.suspects.empty()) {
    return "all ranks were heard from; the connection between them failed";
  }
  std::vector<std::string> parts;
  bool differs = false;
  for (const auto& suspect : verdict.suspects) {
    const std::string number = concat("rank ", suspect.rank);
    parts.push_back(
        describe(suspect, suspect.rank == self ? "this rank (" + number + ")" : number));
    differs = differs || suspect.kind == Suspect::Kind::differs;
  }
  std::string text = join(parts, "; ");
  if (differs) text += concat(", and the others ", verdict.what);
  return text;
}

}  // namespace bellows::parallel
