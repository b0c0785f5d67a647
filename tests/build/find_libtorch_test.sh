#!/usr/bin/env bash
# What FindLibTorch takes and what it refuses, on made-up folders.
source "$(dirname "$0")/lib.sh"

# fake_libtorch FOLDER [VERSION [ABI]]: text files in place of libraries; a symbol tells the C++ ABI.
fake_libtorch() {
  local version=(${2:-2.14.1}) symbol=_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcE
  version=(${version//./ })
  [ "${3:-1}" = 1 ] || symbol=_ZN3c105ErrorC1ENS_14SourceLocationESs
  mkdir -p "$1"/lib "$1"/include/{ATen/core,torch/headeronly,torch/csrc/api/include/torch}
  echo "$symbol" >"$1/lib/libc10.so"
  touch "$1"/lib/libtorch_cpu.so "$1"/include/ATen/core/Tensor.h "$1"/include/torch/csrc/api/include/torch/nn.h
  printf '#define TORCH_VERSION_%s %s\n' MAJOR "${version[0]}" MINOR "${version[1]}" PATCH "${version[2]}" \
    >"$1/include/torch/headeronly/version.h"
}

configure() {
  rm -rf "$work/build"
  attempt cmake -S "$here/probe" -B "$work/build" -DCMAKE_MODULE_PATH="$source_dir/cmake" "$@"
}

expect_taken() {
  expect_code 0
  expect_said "root $1"
}

expect_refused() {
  expect_code 1
  [ "$(grep -c '^CMake Error' "$work/out")" = 1 ] || fail "expected one error"
  expect_said "$@"
}

NothingFoundNamesThePlacesAndTheRemedy() {
  configure -DCMAKE_PREFIX_PATH="$work/nowhere"
  expect_refused "LibTorch was not found" "LIBTORCH (not set)" "$here/probe/.venv" "$work/nowhere" "-DLIBTORCH="
}

AWrongLibtorchVariableIsNotReplacedByAnother() {
  fake_libtorch "$work/good"
  configure -DLIBTORCH="$work/typo" -DCMAKE_PREFIX_PATH="$work/good"
  expect_refused "LibTorch was not found" "LIBTORCH ($work/typo)"
}

VariableThenEnvironmentThenVenvThenPrefixPath() {
  local project=$work/project
  cp -r "$here/probe" "$project"
  fake_libtorch "$work/variable"
  fake_libtorch "$work/environment"
  fake_libtorch "$project/.venv/lib/python3.11/site-packages/torch"
  fake_libtorch "$work/prefix/libtorch"
  take() {
    rm -rf "$work/build"
    attempt cmake -S "$project" -B "$work/build" -DCMAKE_MODULE_PATH="$source_dir/cmake" \
      -DCMAKE_PREFIX_PATH="$work/prefix" "$@"
  }
  LIBTORCH=$work/environment take -DLIBTORCH="$work/variable"
  expect_taken "$work/variable"
  LIBTORCH=$work/environment take
  expect_taken "$work/environment"
  take
  expect_taken "$project/.venv/lib/python3.11/site-packages/torch"
  rm -r "$project/.venv"
  take
  expect_taken "$work/prefix/libtorch"
}

TheEnvironmentIsRememberedByLaterRuns() {
  fake_libtorch "$work/mine"
  LIBTORCH=$work/mine configure
  expect_taken "$work/mine"
  attempt cmake "$work/build"
  expect_taken "$work/mine"
}

AFolderAboveLibtorchWillDo() {
  fake_libtorch "$work/with space/libtorch"
  configure -DLIBTORCH="$work/with space"
  expect_taken "$work/with space/libtorch"
}

AnIncompleteFolderNamesWhatItLacks() {
  fake_libtorch "$work/torch"
  rm "$work/torch/lib/libc10.so" "$work/torch/include/ATen/core/Tensor.h"
  configure -DLIBTORCH="$work/torch"
  expect_refused "$work/torch is incomplete: it lacks lib/libc10.so, include/ATen/core/Tensor.h." "set LIBTORCH"
}

AnUnknownVersionIsRefused() {
  fake_libtorch "$work/torch"
  : >"$work/torch/include/torch/headeronly/version.h"
  configure -DLIBTORCH="$work/torch"
  expect_refused "does not tell its version" "version.h"
}

AnOldVersionNamesBothVersions() {
  fake_libtorch "$work/torch" 2.9.1
  configure -DLIBTORCH="$work/torch"
  expect_refused "is version 2.9.1; 2.11 or newer is needed" "set LIBTORCH"
}

TheOldestSupportedVersionIsTaken() {
  fake_libtorch "$work/torch" 2.11.0
  configure -DLIBTORCH="$work/torch"
  expect_taken "$work/torch"
  expect_said "version 2.11.0"
}

AnOldAbiLibraryNamesBothValues() {
  fake_libtorch "$work/torch" 2.14.1 0
  configure -DLIBTORCH="$work/torch"
  expect_refused "was built with _GLIBCXX_USE_CXX11_ABI=0" "compiled with _GLIBCXX_USE_CXX11_ABI=1"
}

TheUsersAbiFlagIsSeen() {
  fake_libtorch "$work/torch"
  configure -DLIBTORCH="$work/torch" -DCMAKE_CXX_FLAGS=-D_GLIBCXX_USE_CXX11_ABI=0
  expect_refused "built with _GLIBCXX_USE_CXX11_ABI=1" "compiled with _GLIBCXX_USE_CXX11_ABI=0"
  configure -DLIBTORCH="$work/torch" -DPROBE_DEFINITIONS=_GLIBCXX_USE_CXX11_ABI=0
  expect_refused "built with _GLIBCXX_USE_CXX11_ABI=1" "compiled with _GLIBCXX_USE_CXX11_ABI=0"
}

AMatchingOldAbiIsTaken() {
  fake_libtorch "$work/torch" 2.14.1 0
  configure -DLIBTORCH="$work/torch" -DCMAKE_CXX_FLAGS=-D_GLIBCXX_USE_CXX11_ABI=0
  expect_taken "$work/torch"
}

TheAbiOfTheRealLibraryIsRead() {
  configure -DLIBTORCH="$REAL_LIBTORCH" -DCMAKE_CXX_FLAGS=-D_GLIBCXX_USE_CXX11_ABI=0
  expect_refused "$REAL_LIBTORCH was built with _GLIBCXX_USE_CXX11_ABI=1"
}

ACpuBuildIsRefusedWhereCudaIsAskedFor() {
  fake_libtorch "$work/torch"
  configure -DLIBTORCH="$work/torch" -DPROBE_COMPONENTS=cuda
  expect_refused "$work/torch is a CPU build" "Set LIBTORCH to the folder of one with CUDA"
  touch "$work/torch/lib/libtorch_cuda.so" "$work/torch/lib/libc10_cuda.so"
  configure -DLIBTORCH="$work/torch" -DPROBE_COMPONENTS=cuda
  expect_taken "$work/torch"
}

# Libraries that can be linked. libtorch_cuda needs one that is on disk, but nowhere the linker looks by itself.
linkable_libtorch() {
  local torch=$1 nvidia=$1/../nvidia/cu/lib name
  fake_libtorch "$torch"
  mkdir -p "$nvidia"
  stub() { echo "$1" | "$CXX" -shared -fPIC -x c++ - -x none -o "${@:2}"; }
  stub 'int in_cublas() { return 1; }' "$nvidia/libcublas.so.13" -Wl,-soname,libcublas.so.13
  stub 'int in_c10() { return 1; }' "$torch/lib/libc10.so" -Wl,-soname,libc10.so
  stub 'int in_cpu() { return 1; }' "$torch/lib/libtorch_cpu.so" -Wl,-soname,libtorch_cpu.so
  stub 'int in_c10_cuda() { return 1; }' "$torch/lib/libc10_cuda.so" -Wl,-soname,libc10_cuda.so
  stub 'int in_cublas(); int elsewhere(); int in_cuda() { return in_cublas() + elsewhere(); }' \
    "$torch/lib/libtorch_cuda.so" -Wl,-soname,libtorch_cuda.so "$nvidia/libcublas.so.13"
}

build_program() {
  echo 'int main() {}' >"$work/main.cpp"
  configure -DLIBTORCH="$work/torch" -DPROBE_PROGRAM="$work/main.cpp" "$@"
  expect_code 0
  attempt cmake --build "$work/build"
  expect_code 0
  readelf -d "$work/build/program" >"$work/out"
}

TheLinkerKeepsTheCudaLibrary() {
  linkable_libtorch "$work/torch"
  for linker in bfd mold; do
    build_program -DPROBE_COMPONENTS=cuda -DPROBE_LINK=LibTorch::cuda \
      -DCMAKE_EXE_LINKER_FLAGS="-Wl,--as-needed -fuse-ld=$linker"
    expect_said "[libtorch_cuda.so]" "[libtorch_cpu.so]"
  done
}

ACpuProgramNeedsNoCudaLibrary() {
  linkable_libtorch "$work/torch"
  build_program -DPROBE_LINK=LibTorch::cpu -DCMAKE_EXE_LINKER_FLAGS=-Wl,--as-needed
  expect_said "[libtorch_cpu.so]" "[$work/torch/lib"
  ! grep -q cuda "$work/out" || fail "a CUDA library is needed"
}

AToolkitWithNvtx3HeadersAloneWillDo() {
  linkable_libtorch "$work/torch"
  mkdir -p "$work/toolkit/include/nvtx3" "$work/toolkit/lib64"
  touch "$work/toolkit/include/nvtx3/nvToolsExt.h" "$work/toolkit/include/cuda.h"
  build_program -DPROBE_COMPONENTS=cuda -DPROBE_LINK=LibTorch::cuda -DCUDAToolkit_ROOT="$work/toolkit" \
    -DCUDA_TOOLKIT_ROOT_DIR="$work/toolkit"
}

run_case "$@"
