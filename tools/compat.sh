#!/usr/bin/env bash
# tools/compat.sh VERSION: builds the programs and tests against that version of LibTorch, in build/compat/VERSION,
# runs the tests that need no Python, and trains a little, stops and resumes. Exits 0 where all of that works.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:?usage: tools/compat.sh VERSION}
folder=build/compat/$version
mkdir -p "$folder"
jobs=$(make --silent print-jobs)
fail() {
  echo "compat: LibTorch $version: $*" >&2
  exit 1
}

unset LIBTORCH
echo "torch==$version" >"$folder/requirements-libtorch.txt"
tools/setup.sh packages
VENV=$folder/venv LOGS=$folder REQUIREMENTS=$folder tools/setup.sh demo
python=$folder/venv/bin/python
needs=$("$python" tools/wheel_needs.py)
# shellcheck disable=SC2086  # one word each
[ -z "$needs" ] || "$python" -m pip install --disable-pip-version-check $needs >"$folder/pip.log" 2>&1 ||
  fail "$needs could not be installed (pip's own words: $folder/pip.log)"
libtorch=$(echo "$PWD/$folder"/venv/lib/python3*/site-packages/torch)

echo "compat: building against LibTorch $version"
cmake -S . -B "$folder/build" -G Ninja --log-level=NOTICE -DCMAKE_BUILD_TYPE=Release -DBELLOWS_CUDA=OFF \
  -DLIBTORCH="$libtorch"
cmake --build "$folder/build" --parallel "$jobs" >"$folder/build.log" 2>&1 ||
  fail "does not build: $(grep -m 1 -E 'error' "$folder/build.log") (all of it: $folder/build.log)"

echo "compat: training, stopping and resuming"
train() {
  "$folder/build/bin/bellows" --libtorch "$libtorch" train configs/fashion-mnist.toml --device cpu --run "$folder/run" --set data.limit=2000 \
    --set run.epochs="$1" "${@:2}" >>"$folder/train.log" 2>&1 ||
    fail "training fails: $(tail -n 1 "$folder/train.log") (all of it: $folder/train.log)"
}
: >"$folder/train.log"
train 1 --overwrite
train 2 --resume auto

tools/run_tests.py "$folder/build" --jobs "$jobs" -LE python -E '^build\.'
echo "compat: LibTorch $version works"
