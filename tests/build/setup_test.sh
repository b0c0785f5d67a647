#!/usr/bin/env bash
# tools/setup.sh, with stand-ins for apt-get, sudo and pip: what it says, and what it does again after a failure.
source "$(dirname "$0")/lib.sh"

# stand_in NAME SCRIPT: a program that is found before the system's.
stand_in() {
  mkdir -p "$work/bin"
  printf '#!/bin/bash\n%s\n' "$2" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

# An environment whose Python records its calls of pip; an install does what $work/pip says.
fake_venv() {
  mkdir -p "$work/venv/bin"
  printf '#!/bin/bash\ncase "$*" in\n  *"pip --version"*) ;;\n  *"pip install"*) echo "$*" >>%q; source %q ;;\n  *venv_repair*) echo repair >>%q ;;\nesac\n' \
    "$work/calls" "$work/pip" "$work/calls" >"$work/venv/bin/python"
  chmod +x "$work/venv/bin/python"
  echo true >"$work/pip"
}

all_packages_installed() {
  stand_in dpkg-query "printf '%s installed\n' \"\${@:4}\""
}

setup() {
  PATH="$work/bin:$PATH" VENV="$work/venv" LOGS="$work/logs" attempt "$source_dir/tools/setup.sh" "$@"
}

TheDemoInstallsLibtorchAlone() {
  all_packages_installed
  fake_venv
  setup demo
  expect_code 0
  [ "$(grep -c 'pip install' "$work/calls")" = 1 ] || fail "expected one install: $(cat "$work/calls")"
  grep -q -- '--no-deps.*requirements-libtorch.txt' "$work/calls" || fail "$(cat "$work/calls")"
}

TheTestsExtendWhatTheDemoInstalled() {
  all_packages_installed
  fake_venv
  setup demo
  : >"$work/calls"
  setup test
  expect_code 0
  ! grep -q requirements-libtorch "$work/calls" || fail "LibTorch was installed again"
  grep -q requirements-test "$work/calls" || fail "the packages of the tests were not installed"
}

NothingMissingSaysAndDoesNothing() {
  all_packages_installed
  fake_venv
  setup test
  : >"$work/calls"
  setup test
  expect_code 0
  [ ! -s "$work/calls" ] && [ ! -s "$work/out" ] || fail "$(cat "$work/calls")"
}

AnInterruptedInstallIsMadeGood() {
  all_packages_installed
  fake_venv
  echo 'kill -9 $PPID; sleep 1' >"$work/pip"
  setup demo
  expect_code 137
  echo true >"$work/pip"
  : >"$work/calls"
  setup demo
  expect_code 0
  [ "$(head -n 1 "$work/calls")" = repair ] || fail "what was half done was not looked for"
  grep -q requirements-libtorch "$work/calls" || fail "the install was not repeated"
}

AChangedPinIsInstalled() {
  all_packages_installed
  fake_venv
  setup demo
  echo 'torch==2.11.0' >"$work/venv/.bellows-libtorch"
  : >"$work/calls"
  setup demo
  grep -q requirements-libtorch "$work/calls" || fail "the new pin was not installed"
}

OfflineIsOneSentenceAndCodeThree() {
  all_packages_installed
  fake_venv
  echo 'echo "WARNING: Retrying: Failed to establish a new connection: Name or service not known"; exit 1' >"$work/pip"
  setup demo
  expect_code 3
  expect_said "torch==" "could not be installed" "no network, or its server does not answer" "set LIBTORCH" "$work/logs/pip.log"
  ! grep -qE 'WARNING|Traceback' "$work/out" || fail "pip's own words came through"
  grep -q Retrying "$work/logs/pip.log" || fail "pip's own words are lost"
}

AFullDiskIsNamed() {
  all_packages_installed
  fake_venv
  echo 'echo "ERROR: [Errno 28] No space left on device"; exit 1' >"$work/pip"
  setup demo
  expect_code 3
  expect_said "the disk is full"
}

MissingPackagesOfAnOrdinaryUserNameTheCommand() {
  stand_in dpkg-query "printf '%s installed\n' \"\${@:4}\" | grep -v -e '^mold' -e '^g++'; exit 1"
  stand_in id 'echo 1000'
  stand_in sudo 'exit 1'
  setup demo
  expect_code 3
  expect_said "As root, run: apt-get update && apt-get install -y --no-install-recommends g++ mold"
}

MissingPackagesAreInstalledByRoot() {
  stand_in dpkg-query "printf '%s installed\n' \"\${@:4}\" | grep -v '^mold'; exit 1"
  stand_in id 'echo 0'
  stand_in apt-get "echo \"\$*\" >>$(printf %q "$work/calls")"
  fake_venv
  setup demo
  expect_code 0
  grep -q '^install -y --no-install-recommends mold$' "$work/calls" || fail "$(cat "$work/calls")"
}

AnUnreachablePackageSourceIsOneSentence() {
  stand_in dpkg-query "printf '%s installed\n' \"\${@:4}\" | grep -v '^mold'; exit 1"
  stand_in id 'echo 0'
  stand_in apt-get 'echo "E: Unable to connect to the mirror"; exit 100'
  setup demo
  expect_code 3
  expect_said "the Debian packages mold could not be installed" "no network" "$work/logs/apt.log"
}

AnOwnLibtorchNeedsNoEnvironment() {
  all_packages_installed
  stand_in python3 'exit 1'
  LIBTORCH=/somewhere setup build
  expect_code 0
  [ ! -e "$work/venv" ] || fail "an environment was made"
}

RepairForgetsAPackageWithAMissingFile() {
  python3 -m venv --without-pip "$work/venv"
  local site
  site=$(echo "$work"/venv/lib/python3*/site-packages)
  for name in whole cut lost; do
    mkdir -p "$site/$name-1.dist-info" "$site/$name"
    echo four >"$site/$name/file.py"
    echo "$name/file.py,sha256=x,5" >"$site/$name-1.dist-info/RECORD"
  done
  : >"$site/cut/file.py"
  rm "$site/lost-1.dist-info/RECORD"
  attempt "$work/venv/bin/python" "$source_dir/tools/venv_repair.py"
  expect_code 0
  expect_said "cut-1 is incomplete" "lost-1 is incomplete"
  [ -e "$site/whole-1.dist-info" ] && [ ! -e "$site/cut-1.dist-info" ] && [ ! -e "$site/lost-1.dist-info" ] ||
    fail "$(ls "$site")"
}

run_case "$@"
