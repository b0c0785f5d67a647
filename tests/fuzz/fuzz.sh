#!/usr/bin/env bash
# Runs libFuzzer, with the address and undefined-behaviour sanitizers, on the readers of files, and prints which parts
# of their code the inputs reached.
#   tests/fuzz/fuzz.sh [RUNS [READER…]]      default: 100000 runs of each; needs clang++-14 and llvm-14
#   SECONDS_EACH=1200 tests/fuzz/fuzz.sh -1  runs each for that long
# The corpus that is committed (tests/fuzz/corpus, seeds.cpp) grows in build/fuzz/corpus; an input that fails is
# written to build/fuzz and named. Readers of checkpoints may take 16 MiB and twice the input at once (inputs are small).
set -euo pipefail
cd "$(dirname "$0")/../.."
runs=${1:-100000}
readers=("${@:2}")
[ ${#readers[@]} -gt 0 ] || readers=(idx cifar npy csv tar image safetensors pickle torch config manifest records tree)
for tool in clang++-14 llvm-profdata-14 llvm-cov-14; do
  command -v $tool >/dev/null || { echo "tests/fuzz/fuzz.sh: $tool is not installed" >&2; exit 3; }
done

# Sources of a reader, whose coverage is printed.
sources_of() {
  case $1 in
    safetensors) echo bellows/checkpoint/safetensors_header.cpp ;;
    pickle) echo bellows/formats/pickle_{calls,heap,machine}.cpp ;;
    torch) echo bellows/formats/{file_kind,input_bytes,torch_contents,zip_directory}.cpp ;;
    manifest) echo bellows/checkpoint/{json_text,manifest}.cpp ;;
    records) echo bellows/train/events/records.cpp ;;
    tree) echo bellows/checkpoint/tree_json.cpp ;;
    config) echo bellows/train/config.cpp bellows/core/options.cpp ;;
    image) echo bellows/data/{image_codec,jpeg_codec,png_codec}.cpp ;;
    *) echo "bellows/data/$1_file.cpp" ;;
  esac
}
# Bytes that one allocation may take, in MiB.
most_at_once() {
  case $1 in
    safetensors | pickle | torch) echo 16 ;;
    *) echo 0 ;;  # any
  esac
}

build=build/fuzz
mkdir -p "$build/corpus"
flags=(-std=c++20 -I. -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fprofile-instr-generate -fcoverage-mapping)
compiled=(bellows/core/{error,file,options,printable,text}.cpp bellows/train/config.cpp bellows/train/events/records.cpp
  bellows/checkpoint/{digest,json_text,manifest,safetensors_header}.cpp
  bellows/formats/*.cpp bellows/data/{byte_source,cifar_file,csv_file,idx_file,image_codec,jpeg_codec,npy_file,png_codec,tar_bytes,tar_file}.cpp)
objects=()
compile() {
  [ "$2" -nt "$1" ] || clang++-14 "${flags[@]}" -fsanitize=fuzzer-no-link -c "$1" -o "$2"
}
for source in "${compiled[@]}"; do
  object=$build/$(echo "$source" | tr / _).o
  compile "$source" "$object" &
  objects+=("$object")
  [ $((${#objects[@]} % 2)) = 1 ] || wait
done
wait
libraries=(-ljpeg -lpng -larchive -lz)
clang++-14 -std=c++20 -I. tests/fuzz/seeds.cpp bellows/train/events/records.cpp tests/data/{image_files,support}.cpp -o "$build/seeds" -lgtest "${libraries[@]}"
"$build/seeds" "$build/corpus"
cp -r tests/fuzz/corpus/. "$build/corpus"
mkdir -p "$build/corpus/config"
cp configs/*.toml "$build/corpus/config"

# Trees hold tensors: their reader alone is linked with LibTorch.
with_libtorch() {
  local torch=(${LIBTORCH:-.venv/lib/python3*/site-packages/torch})
  echo -DWITH_LIBTORCH -isystem "${torch[0]}/include" bellows/checkpoint/tree_json.cpp bellows/tree/tree.cpp \
    -L"${torch[0]}/lib" "-Wl,-rpath,$(realpath "${torch[0]}/lib")" -ltorch_cpu -lc10
}

# One reader; what it printed comes at once.
fuzz() {
  local reader=$1 log=$build/$1.log more=()
  [ "$reader" != tree ] || read -ra more <<<"$(with_libtorch)"
  clang++-14 "${flags[@]}" -fsanitize=fuzzer "-DREADER=$reader" tests/fuzz/readers.cpp "${objects[@]}" "${more[@]}" -o "$build/$reader" "${libraries[@]}"
  if ! LLVM_PROFILE_FILE=$build/$reader.profraw "$build/$reader" -runs="$runs" -max_total_time="${SECONDS_EACH:-0}" -seed=1 \
    -max_len=8192 -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb="$(most_at_once "$reader")" \
    -artifact_prefix="$build/$reader-" "$build/corpus/$reader" >"$log" 2>&1; then
    tail -60 "$log"
    return 1
  fi
  llvm-profdata-14 merge "$build/$reader.profraw" -o "$build/$reader.profdata"
  local report
  # shellcheck disable=SC2046
  report=$(llvm-cov-14 report "$build/$reader" -instr-profile="$build/$reader.profdata" -show-branch-summary \
    $(sources_of "$reader") | awk '/\.cpp/ { printf "  %s: %s of functions, %s of lines, %s of branches\n", $1, $7, $10, $13 }')
  printf '%s: %s\n%s\n' "$reader" "$(grep DONE "$log")" "$report"
}

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
running=0
for reader in "${readers[@]}"; do
  if ((running == $(nproc))); then wait -n; else running=$((running + 1)); fi  # the first that fails ends all
  fuzz "$reader" &
done
while ((running > 0)); do
  wait -n
  running=$((running - 1))
done
