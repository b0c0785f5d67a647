#include "bellows/nodes/protocol.h"

#include <algorithm>
#include <limits>

#include <nlohmann/json.hpp>

#include "bellows/checkpoint/json_text.h"
#include "bellows/core/error.h"
#include "bellows/core/text.h"

namespace bellows::nodes {
namespace {

using Json = nlohmann::json;
constexpr int kDeepest = 4;
constexpr size_t kLongestName = 256;
constexpr size_t kMostMembers = 4096;
constexpr int kMost = 1 << 24;  // ranks, restarts, generations

/// What others wrote reaches the terminal: nothing but letters, tabs and line feeds.
std::string harmless(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = ' ';
  }
  return text;
}

/// One object's values; a missing or unlike one throws ValueError.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {
    if (!json.is_object()) throw ValueError("no object");
  }
  std::string text(const char* key, size_t longest = kLongestName) const {
    const Json& value = at(key);
    if (!value.is_string()) throw ValueError(key);
    std::string text = value.get<std::string>();
    if (text.size() > longest) throw ValueError(key);
    return harmless(std::move(text));
  }
  int64_t number(const char* key, int64_t low, int64_t high) const {
    const Json& value = at(key);
    if (!value.is_number_integer()) throw ValueError(key);
    const auto number = value.get<int64_t>();
    if (number < low || number > high) throw ValueError(key);
    return number;
  }
  int small(const char* key, int low = 0, int high = kMost) const {
    return static_cast<int>(number(key, low, high));
  }
  bool flag(const char* key) const {
    const Json& value = at(key);
    if (!value.is_boolean()) throw ValueError(key);
    return value.get<bool>();
  }
  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) throw ValueError(key);
    return *found;
  }

 private:
  const Json& json_;
};

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Member member_of(const Json& json) {
  const Fields fields(json);
  return {fields.text("id"), fields.text("host"), fields.number("pid", 0, kAny),
          fields.small("ranks", 1)};
}

Plan plan_of(const Fields& fields) {
  Plan plan;
  plan.number = fields.number("number", 0, kAny);
  plan.stage = static_cast<Plan::Stage>(fields.small("stage", 0, 3));
  plan.generation = fields.small("generation", -1);
  plan.restarts = fields.small("restarts");
  plan.master_address = fields.text("master_address");
  plan.master_port = fields.small("master_port", 0, 65535);
  plan.signal = fields.small("signal", 0, 64);
  plan.asks = fields.small("asks");
  plan.code = fields.small("code", 0, 255);
  plan.text = fields.text("text", kLongestReport);
  plan.node = fields.text("node");
  plan.report = fields.text("report", 4 * kLongestReport);
  const Json &members = fields.at("members"), &lost = fields.at("lost");
  if (!members.is_array() || !lost.is_array() || members.size() > kMostMembers) {
    throw ValueError("members");
  }
  for (const Json& member : members) plan.members.push_back(member_of(member));
  for (const Json& id : lost) plan.lost.push_back(id.is_string() ? id.get<std::string>() : "");
  for (const auto& [id, why] : fields.at("refused").items()) {
    plan.refused[id] = why.is_string() ? harmless(why.get<std::string>()) : "";
  }
  return plan;
}

NodeState state_of(const Fields& fields) {
  NodeState state;
  state.id = fields.text("id");
  state.host = fields.text("host");
  state.pid = fields.number("pid", 0, kAny);
  state.address = fields.text("address");
  state.port = fields.small("port", 0, 65535);
  state.ranks = fields.small("ranks", 1);
  state.node_rank = fields.small("node_rank");
  state.least = fields.small("least", 1);
  state.most = fields.small("most", 1);
  state.max_restarts = fields.small("max_restarts");
  state.fixed = fields.flag("fixed");
  state.beat = fields.number("beat", 0, kAny);
  state.stage = static_cast<NodeState::Stage>(fields.small("stage", 0, 3));
  state.generation = fields.small("generation", -1);
  state.failed = fields.flag("failed");
  state.rank = fields.small("rank", -1);
  state.killed = fields.flag("killed");
  state.how = fields.text("how", kLongestReport);
  state.code = fields.small("code", 0, 255);
  state.report = fields.text("report", 4 * kLongestReport);
  state.signal = fields.small("signal", 0, 64);
  state.asks = fields.small("asks");
  return state;
}

template <class Value>
std::optional<Value> decoded(std::string_view text, Value (*read)(const Fields&)) {
  const Json json = checkpoint::parse_json(text, kDeepest);
  if (json.is_discarded()) return std::nullopt;
  try {
    return read(Fields(json));
  } catch (const ValueError&) {
    return std::nullopt;
  }
}

Job job_of(const Fields& fields) {
  return {fields.small("version", 1), fields.text("name"), fields.text("host"),
          fields.number("pid", 0, kAny)};
}

}  // namespace

std::string nodes_key(const std::string& job) {
  return "bellows/" + job + "/nodes";
}

std::string state_key(const std::string& job, const std::string& node) {
  return "bellows/" + job + "/node/" + node;
}

std::string plan_key(const std::string& job) {
  return "bellows/" + job + "/plan";
}

std::string number_key(const std::string& job) {
  return "bellows/" + job + "/plan/number";
}

std::string failures_key(const std::string& job, int generation) {
  return concat("bellows/", job, "/failures/", generation);
}

std::string encode(const Job& job) {
  return dumped(
      {{"version", job.version}, {"name", job.name}, {"host", job.host}, {"pid", job.pid}});
}

std::string encode(const NodeState& state) {
  return dumped({{"id", state.id},
                 {"host", state.host},
                 {"pid", state.pid},
                 {"address", state.address},
                 {"port", state.port},
                 {"ranks", state.ranks},
                 {"node_rank", state.node_rank},
                 {"least", state.least},
                 {"most", state.most},
                 {"max_restarts", state.max_restarts},
                 {"fixed", state.fixed},
                 {"beat", state.beat},
                 {"stage", static_cast<int>(state.stage)},
                 {"generation", state.generation},
                 {"failed", state.failed},
                 {"rank", state.rank},
                 {"killed", state.killed},
                 {"how", state.how.substr(0, 4096)},
                 {"code", state.code},
                 {"report", state.report.substr(0, kLongestReport)},
                 {"signal", state.signal},
                 {"asks", state.asks}});
}

std::string encode(const Plan& plan) {
  Json members = Json::array();
  for (const Member& member : plan.members) {
    members.push_back(
        {{"id", member.id}, {"host", member.host}, {"pid", member.pid}, {"ranks", member.ranks}});
  }
  return dumped({{"number", plan.number},
                 {"stage", static_cast<int>(plan.stage)},
                 {"generation", plan.generation},
                 {"restarts", plan.restarts},
                 {"members", members},
                 {"master_address", plan.master_address},
                 {"master_port", plan.master_port},
                 {"signal", plan.signal},
                 {"asks", plan.asks},
                 {"code", plan.code},
                 {"text", plan.text.substr(0, kLongestReport / 4)},
                 {"node", plan.node},
                 {"report", plan.report.substr(0, kLongestReport)},
                 {"refused", plan.refused},
                 {"lost", plan.lost}});
}

std::optional<Job> decode_job(std::string_view text) {
  return decoded(text, job_of);
}

std::optional<NodeState> decode_state(std::string_view text) {
  return decoded(text, state_of);
}

std::optional<Plan> decode_plan(std::string_view text) {
  return decoded(text, plan_of);
}

std::string place_of(const std::string& host, int64_t pid) {
  return concat(host, ", pid ", pid);
}

std::string name_of(const Plan& plan, const std::string& id) {
  for (size_t i = 0; i < plan.members.size(); ++i) {
    const Member& member = plan.members[i];
    if (member.id == id) return concat("node ", i, " (", place_of(member.host, member.pid), ")");
  }
  return "a node that is not in the job";
}

}  // namespace bellows::nodes
