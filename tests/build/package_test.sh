#!/usr/bin/env bash
# The installed package, and what a project that uses it sees.
source "$(dirname "$0")/lib.sh"

install_package() {
  attempt cmake --install "$BUILD_DIR" --prefix "$work/first"
  expect_code 0
  mv "$work/first" "$work/moved"
}

configure_consumer() {
  attempt cmake -S "$source_dir/examples/consumer" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$CXX" \
    -DCMAKE_PREFIX_PATH="$work/moved" "$@"
}

# Also where the linker drops libraries that the program's own code does not call.
AConsumerBuildsAndRunsFromAMovedFolder() {
  install_package
  configure_consumer -DLIBTORCH="$REAL_LIBTORCH" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--as-needed
  expect_code 0
  attempt cmake --build "$work/build"
  expect_code 0
  attempt "$work/build/app"
  expect_code 0
  expect_said "model convnet model lstm model mlp model resnet18 model transformer" "device cpu"
}

# With the kernel where there is an nvcc, and with its CPU twin alone.
AnOwnKernelBuildsAndItsTwinsAgree() {
  install_package
  local compiler kernels=()
  if command -v nvcc >/dev/null; then kernels+=("$(command -v nvcc)"); fi
  for compiler in "${kernels[@]}" NOTFOUND; do
    rm -rf "$work/build"
    attempt cmake -S "$source_dir/examples/own_kernel" -B "$work/build" -G Ninja -DCMAKE_CXX_COMPILER="$CXX" \
      -DCMAKE_PREFIX_PATH="$work/moved" -DLIBTORCH="$REAL_LIBTORCH" -DCMAKE_CUDA_COMPILER="$compiler" \
      -DCMAKE_CUDA_ARCHITECTURES=90
    expect_code 0
    attempt cmake --build "$work/build"
    expect_code 0
    attempt env BELLOWS_SIM_DEVICES=2 "$work/build/own_kernel"
    expect_code 0
    expect_said "cpu: as LibTorch's operators" "sim:1: as the CPU, bit by bit"
    if [ "$compiler" = NOTFOUND ]; then continue; fi
    # The runtime library and nothing else of CUDA; the kernel is in the program.
    readelf -dS --wide "$work/build/own_kernel" >"$work/out"
    expect_said libcudart .nv_fatbin
    ! grep -Eq 'NEEDED.*(torch_cuda|c10_cuda|libcuda\.)' "$work/out" || fail "links more of CUDA than its runtime"
  done
}

NothingInstalledNamesTheBuildMachine() {
  install_package
  attempt grep -rnF --include='*.cmake' -e "$source_dir" -e "$work" -e "$REAL_LIBTORCH" -e /usr/local/cuda "$work/moved"
  [ "$code" = 1 ] || fail "installed CMake files name folders of this machine"
  local file paths
  while read -r file; do
    paths=$(readelf -d "$file" 2>/dev/null | sed -n 's/.*R\(UN\)\?PATH.*\[\(.*\)\]/\2/p' | tr ':' '\n')
    ! grep -qv '^\$ORIGIN' <<<"${paths:-\$ORIGIN}" || fail "$file looks for libraries in: $paths"
  done < <(find "$work/moved/bin" "$work/moved/lib" -type f ! -name '*.cmake')
}

# The version of the LibTorch at hand must be that of the build: made here by a folder of links with another number.
AnotherLibtorchVersionIsRefused() {
  install_package
  local torch=$work/other/torch
  mkdir -p "$torch/include/torch/headeronly"
  ln -s "$REAL_LIBTORCH/lib" "$torch/lib"
  cp -rs "$REAL_LIBTORCH/include/ATen" "$REAL_LIBTORCH/include/torch" "$torch/include/"
  rm "$torch/include/torch/headeronly/version.h"
  printf '#define TORCH_VERSION_%s 98\n' MAJOR MINOR PATCH >"$torch/include/torch/headeronly/version.h"
  configure_consumer -DLIBTORCH="$torch"
  expect_code 1
  expect_said "This Bellows was built with LibTorch" "$torch is version 98.98.98" "Set LIBTORCH"
}

TheUmbrellaHeaderWithoutExceptionsIsOneError() {
  echo '#include "bellows/bellows.h"' >"$work/main.cpp"
  attempt "$CXX" -std=c++20 -fno-exceptions -fsyntax-only -I "$source_dir" -isystem "$REAL_LIBTORCH/include" "$work/main.cpp"
  expect_code 1
  expect_said "Bellows needs C++ exceptions: compile without -fno-exceptions"
  [ "$(grep -c 'error:' "$work/out")" = 1 ] || fail "expected one error"
}

TheUmbrellaHeaderCompiles() {
  echo '#include "bellows/bellows.h"' >"$work/main.cpp"
  attempt "$CXX" -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I "$source_dir" -isystem "$REAL_LIBTORCH/include" "$work/main.cpp"
  expect_code 0
}

run_case "$@"
