// Everything that is cheap to include: all public headers but those of bellows/nn/ that take torch::nn.
#pragma once

#include "bellows/core/error.h"

// Without exceptions the line above is the one error; LibTorch's headers would add a page of others.
#if !defined(__GNUC__) || defined(__EXCEPTIONS)
#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/safetensors.h"
#include "bellows/core/clock.h"
#include "bellows/core/file.h"
#include "bellows/core/interrupt.h"
#include "bellows/core/log.h"
#include "bellows/core/options.h"
#include "bellows/core/text.h"
#include "bellows/core/thread_pool.h"
#include "bellows/data/dataset.h"
#include "bellows/data/idx.h"
#include "bellows/data/loader.h"
#include "bellows/data/sampler.h"
#include "bellows/data/tensor_dataset.h"
#include "bellows/device/device.h"
#include "bellows/device/init.h"
#include "bellows/device/move.h"
#include "bellows/nn/model.h"
#include "bellows/nn/registry.h"
#include "bellows/optim/adamw.h"
#include "bellows/optim/optimizer.h"
#include "bellows/tree/stateful.h"
#include "bellows/tree/tree.h"
#endif
