#!/usr/bin/env bash
# tools/check_layering.py on a small tree with one fault at a time.
source "$(dirname "$0")/lib.sh"

small_tree() {
  mkdir -p "$work"/tree/{bellows/{core,data,train},tests/data,cli}
  cd "$work/tree"
  printf '#include "bellows/core/error.h"\n#if 1\n#include "bellows/data/loader.h"\n#endif\n' >bellows/bellows.h
  echo '#include <string>' >bellows/core/error.h
  printf '#include <ATen/core/Tensor.h>\n#include "bellows/core/error.h"\n' >bellows/data/loader.h
  : >tests/data/loader_test.cpp
  printf '%s\n' 'public bellows/core/error.h' 'public bellows/data/loader.h' 'test tests/data/loader_test.cpp' >listed
}

check() { attempt "$source_dir/tools/check_layering.py" "$work/tree" --listed "$work/tree/listed" "$@"; }

expect_fault() {
  check
  expect_code 1
  expect_said "$@"
  [ "$(wc -l <"$work/out")" = 1 ] || fail "expected one fault"
}

ACleanTreeHasNoFault() {
  small_tree
  check
  expect_code 0
}

AnIncludeOfAHigherLayerIsFound() {
  small_tree
  echo '#include "bellows/data/loader.h"' >bellows/core/error.cpp
  expect_fault "bellows/core/error.cpp: includes bellows/data/loader.h, and 'data' is not below 'core'"
}

AMissingIncludeIsFound() {
  small_tree
  echo '#include "bellows/core/gone.h"' >bellows/data/loader.cpp
  expect_fault "bellows/data/loader.cpp: includes bellows/core/gone.h, which does not exist"
}

LibtorchInCoreIsFound() {
  small_tree
  echo '#include <c10/util/Exception.h>' >bellows/core/error.cpp
  expect_fault "core takes no LibTorch"
}

LibtorchInLaunchIsFoundAndItsUseOfCoreIsNot() {
  small_tree
  mkdir bellows/launch
  printf '#include "bellows/core/error.h"\n#include <ATen/core/Tensor.h>\n' >bellows/launch/rank.cpp
  expect_fault "bellows/launch/rank.cpp: includes ATen/core/Tensor.h, and launch takes no LibTorch"
}

AHeavyPublicHeaderIsFound() {
  small_tree
  echo '#include <torch/torch.h>' >bellows/data/loader.h
  check
  expect_code 1
  expect_said "bellows/data/loader.h: includes torch/torch.h"
}

AForgottenHeaderAndTestAreFound() {
  small_tree
  : >tests/data/idx_test.cpp
  expect_fault "tests/data/idx_test.cpp: is compiled by no test program"
  rm tests/data/idx_test.cpp
  sed -i '/loader.h/d' listed
  expect_fault "bellows/data/loader.h: is neither in HEADERS nor in INTERNAL"
}

AnInternalHeaderStaysInternal() {
  small_tree
  : >bellows/data/plan.h
  echo 'internal bellows/data/plan.h' >>listed
  check
  expect_code 0
  echo '#include "bellows/data/plan.h"' >>bellows/data/loader.h
  expect_fault "bellows/data/loader.h: is public and includes bellows/data/plan.h, which is internal"
}

TheUmbrellaHeaderIsWritten() {
  small_tree
  : >bellows/data/idx.h
  echo 'public bellows/data/idx.h' >>listed
  expect_fault "bellows/bellows.h: lacks bellows/data/idx.h"
  check --write
  expect_code 0
  [ "$(cat bellows/bellows.h)" = '#include "bellows/core/error.h"
#if 1
#include "bellows/data/idx.h"
#include "bellows/data/loader.h"
#endif' ] || fail "$(cat bellows/bellows.h)"
}

run_case "$@"
