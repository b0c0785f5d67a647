# What the tests of the build share. Sourced by `NAME_test.sh CASE WORK_DIR`: a case is a function of that file.
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$source_dir/tests/build
unset LIBTORCH CMAKE_PREFIX_PATH

fail() {
  echo "FAILED: $*" >&2
  [ ! -f "$work/out" ] || sed 's/^/  | /' "$work/out" >&2
  exit 1
}

# attempt COMMAND…: its output goes to $work/out, its exit code to $code.
attempt() {
  code=0
  "$@" >"$work/out" 2>&1 </dev/null || code=$?
}

# Every phrase stands in the last attempt's output, however its lines are wrapped.
expect_said() {
  local phrase flat
  flat=$(tr -s '[:space:]' ' ' <"$work/out")
  for phrase in "$@"; do
    [[ $flat == *"$phrase"* ]] || fail "nothing was said of '$phrase'"
  done
}

expect_code() { [ "$code" = "$1" ] || fail "exit code $code, expected $1"; }

run_case() {
  [ $# = 2 ] || { echo "usage: $0 CASE WORK_DIR" >&2; exit 2; }
  work=$2
  rm -rf "$work"
  mkdir -p "$work"
  "$1"
}
