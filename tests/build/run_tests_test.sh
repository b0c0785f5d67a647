#!/usr/bin/env bash
# tools/run_tests.py: skipped tests are seen, and ctest's summary comes last.
source "$(dirname "$0")/lib.sh"

run_tests() {
  { echo 'cmake_minimum_required(VERSION 3.25)'; echo 'project(some NONE)'; echo 'enable_testing()'; cat; } >"$work/CMakeLists.txt"
  cmake -S "$work" -B "$work/build" >/dev/null
  attempt "$source_dir/tools/run_tests.py" "$work/build"
}

skips="PROPERTIES SKIP_REGULAR_EXPRESSION SKIPPED LABELS"
skip_command='echo "a_test.cpp:3: Skipped"; echo "no card here"; echo "[  SKIPPED ] A.B"'

ASkippedTestIsPrintedWithItsReason() {
  run_tests <<<"
    add_test(NAME runs COMMAND true)
    add_test(NAME skips COMMAND sh -c [[$skip_command]])
    set_tests_properties(runs PROPERTIES LABELS cpu)
    set_tests_properties(skips $skips cpu)"
  expect_code 0
  expect_said "skipped: skips: no card here" "100% tests passed"
}

ALabelThatSkipsAsAWholeFails() {
  run_tests <<<"
    add_test(NAME runs COMMAND true)
    add_test(NAME skips COMMAND sh -c [[$skip_command]])
    set_tests_properties(runs PROPERTIES LABELS cpu)
    set_tests_properties(skips $skips python)"
  expect_code 1
  expect_said "FAILED: all 1 tests labelled 'python' skipped"
}

AbsentHardwareMaySkipAsAWhole() {
  run_tests <<<"
    add_test(NAME runs COMMAND true)
    add_test(NAME skips COMMAND sh -c [[$skip_command]])
    set_tests_properties(skips $skips gpu)"
  expect_code 0
  expect_said "skipped: skips: no card here"
}

AFailingTestFailsTheRunAndTheSummaryIsLast() {
  run_tests <<<"
    add_test(NAME runs COMMAND true)
    add_test(NAME fails COMMAND false)"
  expect_code 8
  tail -n 5 "$work/out" | grep -q 'fails (Failed)' || fail "ctest's summary is not last"
}

AMissingProgramIsAFailureNotASkip() {
  run_tests <<<"add_test(NAME absent COMMAND /no/such/program)"
  expect_code 8
  ! grep -q '^skipped' "$work/out" || fail "it was counted as skipped"
}

NoTestAtAllFails() {
  run_tests <<<""
  expect_code 8
}

run_case "$@"
