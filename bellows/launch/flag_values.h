// Values of flags: what they mean, or a ValueError "--FLAG: got 'X', expected Y".
#pragma once

#include <string>
#include <vector>

#include "bellows/launch/launch.h"

namespace bellows::launch {

[[noreturn]] void bad_flag(const std::string& flag, const std::string& got,
                           const std::string& expected);

int whole_number(const std::string& flag, const std::string& text, int low, int high);

/// From 0 to a million.
double seconds_of(const std::string& flag, const std::string& text);

/// --nproc-per-node: a number, cpu, gpu or auto. Throws EnvironmentError for gpu without one.
int ranks_of(const std::string& text);

/// --nnodes: "N" or "MIN:MAX".
void nodes_of(const std::string& text, NodeOptions& nodes);

/// --rdzv-conf of several nodes: "join_timeout=600,keep_alive_interval=5". Keys of torchrun that
/// mean nothing here are noted, others refused.
void take_conf(const std::string& text, Options& options);

/// --numa-binding and --bind-to.
Binding binding_of(const std::string& flag, const std::string& text);

/// --redirects and --tee: "3", or "0:1,1:2"; one entry a rank.
std::vector<unsigned> streams_of(const std::string& flag, const std::string& text, int ranks);

}  // namespace bellows::launch
