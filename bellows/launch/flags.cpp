#include "bellows/launch/flags.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <getopt.h>
#include <sstream>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/launch/flag_values.h"
#include "bellows/launch/signals.h"

namespace bellows::launch {
namespace {

/// What is decided only when all flags are known.
struct Given {
  Options options;
  std::string redirects = "0", tee = "0", shown;
  std::string endpoint, local_address, conf, backend = "static";
  bool node_rank = false, master_address = false, master_port = false, standalone = false,
       log_dir = false;
};

struct Flag {
  std::string name;
  std::string value;  // as help shows it; empty: none is taken
  std::string help;   // empty: not shown
  std::function<void(Given&, const std::string&)> set;
  char letter = 0;
};

void take_endpoint(Given& given) {
  const std::string& text = given.endpoint;
  const size_t colon = text.rfind(':');
  const bool six = text.starts_with('[');
  const size_t bracket = text.rfind(']');
  const bool has_port = colon != std::string::npos && (!six || colon > bracket);
  std::string host = text.substr(0, has_port ? colon : std::string::npos);
  const int port = has_port ? whole_number("rdzv-endpoint", text.substr(colon + 1), 0, 65535) : 0;
  if (six && bracket != std::string::npos) host = host.substr(1, bracket - 1);
  if (host.empty()) bad_flag("rdzv-endpoint", text, "HOST:PORT");
  Options& options = given.options;
  if ((given.master_address && options.master_address != host) ||
      (given.master_port && has_port && options.master_port != port)) {
    throw ValueError(concat("--rdzv-endpoint ", text, " and --master-addr ", options.master_address,
                            " --master-port ", options.master_port, " differ; give one of them"));
  }
  options.master_address = host;
  if (has_port) options.master_port = port;
}

void take_binding(Given& given, const std::string& flag, const std::string& text) {
  const Binding wanted = binding_of(flag, text);
  Binding& binding = given.options.binding;
  if (binding != Binding::none && wanted != Binding::none && wanted != binding) {
    throw ValueError("--numa-binding and --bind-to: give one of them");
  }
  if (wanted != Binding::none) binding = wanted;
}

/// What counts for several nodes alone, once all flags are known.
void settle_nodes(Given& given) {
  Options& options = given.options;
  NodeOptions& nodes = options.nodes;
  nodes.fixed = given.backend == "static";
  if (given.standalone) {
    throw ValueError("--standalone is a job of this machine alone; leave it out, or --nnodes");
  }
  if (!given.endpoint.empty()) take_endpoint(given);
  if (!nodes.fixed && given.endpoint.empty() && !given.master_address) {
    throw ValueError(
        "several nodes meet at --rdzv-endpoint HOST:PORT, which is not given; name an address of "
        "one of them, the same on all");
  }
  nodes.host = options.master_address;
  nodes.port = options.master_port;
  if (nodes.port == 0) nodes.port = nodes.fixed ? 29500 : 29400;
  nodes.local_address = given.local_address;
  if (nodes.fixed && nodes.rank >= nodes.most) {
    bad_flag(
        "node-rank", std::to_string(nodes.rank),
        concat("a number from 0 to ", nodes.most - 1, ", as there are ", nodes.most, " nodes"));
  }
  if (!nodes.fixed && given.node_rank) {
    options.notes.emplace_back(
        "--node-rank has no effect: with --rdzv-backend c10d nodes are numbered as they come");
  }
  if (options.run_id.empty()) options.run_id = "none";
  take_conf(given.conf, options);
}

/// What counts for one node alone.
void settle_alone(Given& given) {
  Options& options = given.options;
  if (options.nodes.rank != 0) {
    bad_flag("node-rank", std::to_string(options.nodes.rank), "0, as there is one node");
  }
  if (given.standalone) {
    if (!given.endpoint.empty() || !options.run_id.empty()) {
      options.notes.emplace_back("--standalone: --rdzv-endpoint and --rdzv-id have no effect");
    }
    given.endpoint.clear();
    options.run_id.clear();
  }
  if (!given.local_address.empty() && !given.master_address) {
    options.master_address = given.local_address;
    given.master_address = given.endpoint.empty();
  }
  if (!given.endpoint.empty()) take_endpoint(given);
  std::istringstream parts(given.conf);
  for (std::string part; std::getline(parts, part, ',');) {
    if (part.find('=') == std::string::npos) {
      bad_flag("rdzv-conf", given.conf, "KEY=VALUE,KEY=VALUE…");
    }
  }
  if (!given.conf.empty()) {
    options.notes.emplace_back("--rdzv-conf has no effect: on one node nothing is waited for");
  }
}

std::vector<Flag> all_flags() {
  const auto no_effect = [](std::string flag, std::string why) {
    return [flag, why](Given& given, const std::string&) {
      given.options.notes.push_back("--" + flag + " has no effect: " + why);
    };
  };
  const auto refused = [](std::string flag, std::string why) {
    return [flag, why](Given&, const std::string&) { throw ValueError("--" + flag + ": " + why); };
  };
  return {
      {"nproc-per-node", "N",
       "ranks to start: a number, cpu (one a core), gpu (one a device) or auto (gpu, else cpu); "
       "default 1",
       [](Given& given, const std::string& text) { given.options.ranks = ranks_of(text); }},
      {"nnodes", "N or MIN:MAX",
       "nodes of the job, on each of which bellows launch is called with the same flags; default 1",
       [](Given& given, const std::string& text) { nodes_of(text, given.options.nodes); }},
      {"node-rank", "N", "this node's number, from 0, with --rdzv-backend static",
       [](Given& given, const std::string& text) {
         given.options.nodes.rank = whole_number("node-rank", text, 0, 1 << 20);
         given.node_rank = true;
       }},
      {"standalone", "",
       "a job of this machine alone, on a free port: the default; --rdzv-endpoint and --rdzv-id "
       "then count for nothing",
       [](Given& given, const std::string&) { given.standalone = true; }},
      {"max-restarts", "N", "how often all ranks are started anew after one has failed; default 0",
       [](Given& given, const std::string& text) {
         given.options.max_restarts = whole_number("max-restarts", text, 0, 1'000'000);
       }},
      {"master-addr", "HOST",
       "address of rank 0's store; default 127.0.0.1. Of several nodes: node 0's, where all meet",
       [](Given& given, const std::string& text) {
         if (text.empty()) bad_flag("master-addr", text, "an address or a host's name");
         const bool six = text.starts_with('[') && text.ends_with(']');
         given.options.master_address = six ? text.substr(1, text.size() - 2) : text;
         given.master_address = true;
       }},
      {"master-port", "PORT", "its port; default: a free one, held for it from the start",
       [](Given& given, const std::string& text) {
         given.options.master_port = whole_number("master-port", text, 0, 65535);
         given.master_port = true;
       }},
      {"local-addr", "HOST",
       "this node's address for the others; on one node the same as --master-addr where that is "
       "not "
       "given",
       [](Given& given, const std::string& text) { given.local_address = text; }},
      {"rdzv-endpoint", "HOST:PORT",
       "the same as --master-addr and --master-port; default port of several nodes: 29400 with "
       "c10d, "
       "29500 with static",
       [](Given& given, const std::string& text) { given.endpoint = text; }},
      {"rdzv-backend", "NAME",
       "of several nodes: static (default; numbered by --node-rank, node 0 has the store) or c10d "
       "(numbered as they come, the node with the endpoint's address has it)",
       [](Given& given, const std::string& text) {
         if (text != "c10d" && text != "static") bad_flag("rdzv-backend", text, "c10d or static");
         given.backend = text;
       }},
      {"rdzv-id", "NAME",
       "the job's name, in TORCHELASTIC_RUN_ID and in the name of its log folder; default: drawn, "
       "and none for several nodes",
       [](Given& given, const std::string& text) {
         if (text.empty() || text.find('/') != std::string::npos || text.starts_with('.')) {
           bad_flag("rdzv-id", text, "a name without '/' that does not begin with '.'");
         }
         given.options.run_id = text;
       }},
      {"rdzv-conf", "KEY=VALUE,…",
       "of several nodes, seconds: join_timeout (600), last_call_timeout (30), close_timeout (30), "
       "heartbeat_timeout (5), keep_alive_interval (5); keep_alive_max_attempt (3); is_host",
       [](Given& given, const std::string& text) { given.conf = text; }},
      {"role", "NAME", "ROLE_NAME of the ranks; default \"default\"",
       [](Given& given, const std::string& text) { given.options.role = text; }},
      {"log-dir", "DIR",
       "write ranks' output to files there too: DIR/JOB_XXXXXX/attempt_N/RANK/stdout.log",
       [](Given& given, const std::string& text) {
         if (text.empty()) bad_flag("log-dir", text, "a folder");
         given.options.log_dir = text;
         given.log_dir = true;
       }},
      {"redirects", "S",
       "streams that go to files and not to the console: 1 output, 2 error, 3 both; or "
       "RANK:S,RANK:S…",
       [](Given& given, const std::string& text) { given.redirects = text; }, 'r'},
      {"tee", "S", "streams that go to files and to the console, written likewise",
       [](Given& given, const std::string& text) { given.tee = text; }, 't'},
      {"local-ranks-filter", "N,…", "only these ranks' lines are shown on the console",
       [](Given& given, const std::string& text) { given.shown = text; }},
      {"log-line-prefix-template", "TEXT",
       "what stands before each line; ${rank}, ${local_rank}, ${role_name}, ${hostname}; default "
       "'[rank ${rank}] '",
       [](Given& given, const std::string& text) { given.options.line_prefix = text; }},
      {"shutdown-timeout", "S",
       "seconds from SIGTERM to SIGKILL; default TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30",
       [](Given& given, const std::string& text) {
         given.options.shutdown_timeout =
             std::chrono::milliseconds(std::llround(1000 * seconds_of("shutdown-timeout", text)));
       }},
      {"signals-to-handle", "SIG,…",
       "further signals (SIGUSR1, …) that ask the ranks to save and end, besides SIGINT, SIGTERM "
       "and SIGHUP",
       [](Given& given, const std::string& text) {
         std::istringstream names(text);
         for (std::string name; std::getline(names, name, ',');) {
           const auto number = signal_number(name);
           const std::set<int> special{SIGKILL, SIGSTOP, SIGCHLD, SIGCONT, SIGTSTP};
           if (!number || special.contains(*number))
             bad_flag("signals-to-handle", text,
                      "names of signals that can be caught, as SIGUSR1,SIGUSR2");
           if (*number != SIGQUIT) given.options.stop_signals.insert(*number);
         }
       }},
      {"virtual-local-rank", "",
       "give each rank LOCAL_RANK 0 and a device of its own in CUDA_VISIBLE_DEVICES",
       [](Given& given, const std::string&) { given.options.virtual_local_rank = true; }},
      {"no-python", "", "accepted: the program is always executed directly",
       [](Given&, const std::string&) {}},
      {"monitor-interval", "S", "accepted; no effect",
       [no_effect](Given& given, const std::string& text) {
         seconds_of("monitor-interval", text);
         no_effect("monitor-interval", "the end of a rank is noticed at once")(given, text);
       }},
      {"start-method", "NAME", "accepted; no effect",
       [no_effect](Given& given, const std::string& text) {
         if (text != "spawn" && text != "fork" && text != "forkserver")
           bad_flag("start-method", text, "spawn, fork or forkserver");
         no_effect("start-method", "ranks are programs, each started anew")(given, text);
       }},
      {"module", "", "",
       refused("module", "bellows launch starts programs: write -- python -m MODULE"), 'm'},
      {"run-path", "", "",
       refused("run-path", "bellows launch starts programs: write -- python SCRIPT")},
      {"event-log-handler", "NAME", "",
       refused("event-log-handler",
               "there are no event handlers; the report at a failure is on standard error")},
      {"logs-specs", "NAME", "",
       refused(
           "logs-specs",
           "there are no plug-ins for logs; --log-dir, --tee and --redirects say what goes where")},
      {"duplicate-stdout-filters", "TEXT", "",
       refused("duplicate-stdout-filters", "not there; use grep on the launcher's output")},
      {"duplicate-stderr-filters", "TEXT", "",
       refused("duplicate-stderr-filters", "not there; use grep on the launcher's output")},
      {"numa-binding", "NAME",
       "CPUs that ranks may run on, near their devices: node, socket, exclusive or core-complex",
       [](Given& given, const std::string& text) { take_binding(given, "numa-binding", text); }},
      {"bind-to", "NAME", "core: each rank gets cores of its own; none: as it is (default)",
       [](Given& given, const std::string& text) { take_binding(given, "bind-to", text); }},
      {"print-completion", "SHELL", "", refused("print-completion", "not there")},
      {"help", "", "print this text", nullptr, 'h'},
  };
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// torchrun's variables PET_…, where the command line does not have the flag.
void take_environment(const std::vector<Flag>& flags, const std::set<std::string>& seen,
                      Given& given) {
  for (const auto& flag : flags) {
    std::string name = "PET_" + with_underscores(flag.name);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || seen.contains(flag.name) || !flag.set) continue;
    if (flag.value.empty() && std::string(value) == "0") continue;
    try {
      flag.set(given, value);
    } catch (const ValueError& error) {
      throw ValueError(concat("environment variable ", name, ": ", error.what()));
    }
  }
}

void take_defaults(Given& given) {
  const char* timeout = std::getenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
  if (timeout != nullptr) {
    given.options.shutdown_timeout = std::chrono::milliseconds(std::llround(
        1000 * seconds_of("shutdown-timeout (TORCH_ELASTIC_SHUTDOWN_TIMEOUT)", timeout)));
  }
  const char* prefix = std::getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  if (prefix != nullptr) given.options.line_prefix = prefix;
}

void settle(Given& given) {
  Options& options = given.options;
  if (options.nodes.most > 1) {
    settle_nodes(given);
  } else {
    settle_alone(given);
  }
  if (given.log_dir && given.redirects == "0" && given.tee == "0") given.tee = "3";
  options.redirects = streams_of("redirects", given.redirects, options.ranks);
  options.tee = streams_of("tee", given.tee, options.ranks);
  std::istringstream shown(given.shown);
  for (std::string rank; std::getline(shown, rank, ',');) {
    options.shown_ranks.insert(whole_number("local-ranks-filter", rank, 0, options.ranks - 1));
  }
}

[[noreturn]] void unknown(const std::string& word, const std::vector<Flag>& flags) {
  std::vector<std::string> names;
  for (const auto& flag : flags) names.push_back("--" + flag.name);
  const std::string guess = nearest(word.substr(0, word.find('=')), names);
  throw ValueError("unknown flag '" + word + "'" +
                   (guess.empty() ? "; bellows launch --help lists what there is; flags of the "
                                    "program stand after it"
                                  : "; did you mean '" + guess + "'?"));
}

}  // namespace

std::optional<Options> parse_flags(const std::vector<std::string>& words) {
  const std::vector<Flag> flags = all_flags();
  std::vector<std::string> underscored;
  for (const auto& flag : flags) underscored.push_back(with_underscores(flag.name));
  std::vector<option> table;
  std::string letters = "+:";
  for (size_t i = 0; i < flags.size(); ++i) {
    const int argument = flags[i].value.empty() ? no_argument : required_argument;
    const int number = 256 + static_cast<int>(i);
    table.push_back({flags[i].name.c_str(), argument, nullptr, number});
    if (underscored[i] != flags[i].name) {
      table.push_back({underscored[i].c_str(), argument, nullptr, number});
    }
    if (flags[i].letter != 0) letters += flags[i].letter;
    if (flags[i].letter != 0 && argument == required_argument) letters += ':';
  }
  table.push_back({nullptr, 0, nullptr, 0});

  std::vector<std::string> copies{"launch"};
  copies.insert(copies.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (auto& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);

  Given given;
  take_defaults(given);
  std::set<std::string> seen;
  opterr = 0;
  optind = 0;  // begins anew
  for (;;) {
    const int at = std::max(optind, 1);
    const int found = ::getopt_long(static_cast<int>(copies.size()), argv.data(), letters.c_str(),
                                    table.data(), nullptr);
    if (found == -1) break;
    const std::string& word = copies.at(static_cast<size_t>(at));
    if (found == ':')
      throw ValueError(word + " needs a value; bellows launch --help lists the flags");
    if (found == '?') unknown(word, flags);
    const auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& each) {
      return found == each.letter || found == 256 + (&each - flags.data());
    });
    if (flag->name == "help") return std::nullopt;
    flag->set(given, optarg == nullptr ? "" : optarg);
    seen.insert(flag->name);
  }
  take_environment(flags, seen, given);
  given.options.program.assign(copies.begin() + optind, copies.end());
  if (given.options.program.empty()) {
    throw ValueError("no program: bellows launch --nproc-per-node 2 -- PROGRAM ARGUMENTS");
  }
  settle(given);
  return std::move(given.options);
}

std::string help_text() {
  std::string text =
      "Usage: bellows launch [FLAGS] [--] PROGRAM [ARGUMENTS]\n\n"
      "Starts PROGRAM as this machine's ranks of one job, with torchrun's flags and environment,\n"
      "and looks after them: when one fails, the others are ended and a report says which and "
      "why.\n\n"
      "Flags:\n";
  for (const auto& flag : all_flags()) {
    if (flag.help.empty()) continue;
    std::string left = flag.letter == 0 ? "  " : concat("  -", flag.letter, ", ");
    left += "--" + flag.name + (flag.value.empty() ? "" : " " + flag.value);
    text += left + "\n        " + flag.help + "\n";
  }
  return text +
         "\nSIGINT, SIGTERM or SIGHUP asks the ranks to save and end; a second one ends them at "
         "once.\n"
         "SIGQUIT (Ctrl-\\, or kill -QUIT) prints which rank is doing what, and for how long.\n\n"
         "Exit code: 0 when all ranks returned 0; else that of the rank that failed first, 128 + "
         "n\n"
         "for a signal; 75 when all ranks saved on request; 2 for wrong usage; 3 where the "
         "machine\n"
         "lacks something.\n";
}

}  // namespace bellows::launch
