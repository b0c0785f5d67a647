// One node's part of a job over several nodes: what `bellows launch --nnodes 2` does.
#pragma once

#include "bellows/launch/launch.h"

namespace bellows::nodes {

/// As launch::launch(), together with the other nodes of `options.nodes`, of which this process
/// has the store where the endpoint is its own. Returns the same code on all nodes: besides those
/// of launch(), 3 where a node, the one with the store among them, was lost or did not come, and 2
/// for a job's name or flags that differ from the others'.
int launch(const launch::Options& options, int out = 1, int err = 2);

}  // namespace bellows::nodes
