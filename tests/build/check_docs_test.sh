#!/usr/bin/env bash
# tools/check_docs.py on a page with one fault at a time.
source "$(dirname "$0")/lib.sh"

page() {
  cat >"$work/page.md"
  attempt "$source_dir/tools/check_docs.py" "$work/page.md"
}

AGoodPageHasNoFault() {
  page <<<'# One heading
See [below](#one-heading), [there](https://example.org) and [this](page.md#one-heading).
```sh
make test LIBTORCH=/opt/libtorch   # all of them
tools/setup.sh demo
```
```cpp test
#include "bellows/core/error.h"
void stop() { throw bellows::ValueError("why"); }
```
```cpp
only shown
```'
  expect_code 0
}

ABrokenLinkIsFound() {
  page <<<'[a](gone.md) [b](#no-such-heading)'
  expect_code 1
  expect_said "the link gone.md leads nowhere" "the link #no-such-heading names no heading"
}

AnUnknownCommandIsFound() {
  page <<<'```sh
make tests
tools/gone.sh
```'
  expect_code 1
  expect_said "make has no target tests" "tools/gone.sh does not exist"
}

CodeThatDoesNotCompileIsFound() {
  page <<<'```cpp test
#include "bellows/core/error.h"
void stop() { throw bellows::NoSuchError("why"); }
```'
  expect_code 1
  expect_said "does not compile" "NoSuchError"
}

run_case "$@"
