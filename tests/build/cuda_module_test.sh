#!/usr/bin/env bash
# Whether the CUDA module is built, and what is said where it is not.
source "$(dirname "$0")/lib.sh"

# A LibTorch for CUDA 13 with all that it needs, and an nvcc of CUDA 13.
everything_there() {
  mkdir -p "$work/torch/lib" "$work/nvidia/cu13/lib"
  echo '2.14.1+cu130' >"$work/torch/build-version"
  for library in cublas cudnn cufft cusparse curand; do touch "$work/nvidia/cu13/lib/lib$library.so.13"; done
  fake_nvcc 13.0
}

fake_nvcc() {
  printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V%s.88"\n' "$1" "$1" >"$work/nvcc"
  chmod +x "$work/nvcc"
}

# decide [-D…]: a project that only asks for the decision.
decide() {
  mkdir -p "$work/project"
  cat >"$work/project/CMakeLists.txt" <<'PROJECT'
cmake_minimum_required(VERSION 3.25)
project(decision NONE)
if(NOT CPU_BUILD)
  add_library(LibTorch::cuda INTERFACE IMPORTED)
endif()
include(BellowsCuda)
message(NOTICE "why not: '${BELLOWS_CUDA_WHY_NOT}'")
message(NOTICE "for '${BELLOWS_CUDA_ARCH_WORDS}' as '${BELLOWS_CUDA_ARCHITECTURES}'")
PROJECT
  rm -rf "$work/build"
  attempt cmake -S "$work/project" -B "$work/build" -DCMAKE_MODULE_PATH="$source_dir/cmake" \
    -DLibTorch_ROOT="$work/torch" "${nvcc:--DBELLOWS_NVCC=$work/nvcc}" -DBELLOWS_CUDA=AUTO "$@"
}

# refused TEXT… -- [-D…]: AUTO goes on and says the text, ON stops with it.
refused() {
  local texts=()
  while [ "$1" != -- ]; do texts+=("$1"); shift; done
  shift
  decide "$@"
  expect_code 0
  expect_said "${texts[@]}"
  decide "$@" -DBELLOWS_CUDA=ON
  expect_code 1
  [ "$(grep -c '^CMake Error' "$work/out")" = 1 ] || fail "expected one error"
  expect_said "BELLOWS_CUDA is ON, but the CUDA module cannot be built" "${texts[@]}"
}

ItIsBuiltWhereAllIsThere() {
  everything_there
  for value in AUTO ON; do
    decide -DBELLOWS_CUDA=$value
    expect_code 0
    expect_said "why not: ''" "for '8.0 9.0+PTX' as '80-real;90'"
  done
}

ReleaseArchitecturesAreNamedAsUsersKnowThem() {
  everything_there
  decide "-DBELLOWS_CUDA_ARCHS=75;90;120"
  expect_said "for '7.5 9.0 12.0+PTX' as '75-real;90-real;120'"
}

OffNeedsNothing() {
  decide -DBELLOWS_CUDA=OFF -DCPU_BUILD=ON
  expect_code 0
  expect_said "why not: 'BELLOWS_CUDA is OFF'"
}

ACpuBuildOfLibtorchIsNamed() {
  everything_there
  refused "$work/torch is a CPU build" "set LIBTORCH" -- -DCPU_BUILD=ON
}

MissingNvidiaLibrariesAreNamed() {
  everything_there
  rm "$work/nvidia/cu13/lib/libcudnn.so.13"
  refused "(libcudnn)" "without --no-deps" --
}

AMissingCompilerIsNamedWithTheVersionWanted() {
  everything_there
  nvcc=-DBELLOWS_CUDA_HINTS=$work/nowhere
  refused "no nvcc" "CUDA toolkit 13" -- -DCMAKE_MAKE_PROGRAM="$(command -v make)" \
    -DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF
}

ACompilerOfAnotherMajorVersionIsRefused() {
  everything_there
  fake_nvcc 12.4
  refused "is of CUDA 12" "built for CUDA 13" "CUDA_HOME" --
}

run_case "$@"
