// The built-in models' factories, without their modules: for registry.cpp.
#pragma once

#include "bellows/core/options.h"
#include "bellows/nn/model.h"

namespace bellows::nn {

Model mlp_from_options(Options& options);
Model convnet_from_options(Options& options);
Model resnet18_from_options(Options& options);
Model lstm_from_options(Options& options);
Model transformer_from_options(Options& options);

}  // namespace bellows::nn
