#!/usr/bin/env bash
# Runs libFuzzer, with the address and undefined-behaviour sanitizers, on the readers of data files.
#   tests/fuzz/fuzz.sh [RUNS [READER…]]      default: 100000 runs of each; needs clang++-14
# A corpus is kept in build/fuzz/corpus; an input that fails is written beside it and named.
set -euo pipefail
cd "$(dirname "$0")/../.."
runs=${1:-100000}
readers=("${@:2}")
[ ${#readers[@]} -gt 0 ] || readers=(idx cifar npy csv tar image)
command -v clang++-14 >/dev/null || { echo "tests/fuzz/fuzz.sh: clang++-14 is not installed" >&2; exit 3; }

build=build/fuzz
mkdir -p "$build"
flags=(-std=c++20 -I. -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all)
objects=()
for source in bellows/core/{error,text}.cpp bellows/data/{byte_source,cifar_file,csv_file,idx_file,image_codec,jpeg_codec,npy_file,png_codec,tar_file}.cpp; do
  object=$build/$(echo "$source" | tr / _).o
  [ "$object" -nt "$source" ] || clang++-14 "${flags[@]}" -fsanitize=fuzzer-no-link -c "$source" -o "$object"
  objects+=("$object")
done
libraries=(-ljpeg -lpng -larchive -lz)
clang++-14 -std=c++20 -I. tests/fuzz/seeds.cpp tests/data/{image_files,support}.cpp -o "$build/seeds" -lgtest "${libraries[@]}"
"$build/seeds" "$build/corpus"
for reader in "${readers[@]}"; do
  clang++-14 "${flags[@]}" -fsanitize=fuzzer "-DREADER=$reader" tests/fuzz/readers.cpp "${objects[@]}" -o "$build/$reader" "${libraries[@]}"
  log=$build/$reader.log
  if ! "$build/$reader" -runs="$runs" -seed=1 -max_len=8192 -timeout=10 -rss_limit_mb=1024 \
    -artifact_prefix="$build/$reader-" "$build/corpus/$reader" >"$log" 2>&1; then
    tail -60 "$log"
    exit 1
  fi
  printf '%-6s %s\n' "$reader" "$(grep DONE "$log")"  # cov: edges of the reader's code that were reached
done
