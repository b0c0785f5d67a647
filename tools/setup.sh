#!/usr/bin/env bash
# tools/setup.sh demo|build|test|ci|packages: installs what that stage needs and does not have yet.
# Debian packages through apt-get; LibTorch (and, for tests, PyTorch itself) from its pinned wheel into .venv.
# LIBTORCH=/path takes that LibTorch instead of a wheel. VENV=dir, REQUIREMENTS=dir (of requirements-*.txt),
# PYTHON=python3 and LOGS=dir may be set.
# Exit codes: 0 all there; 2 wrong usage; 3 something could not be installed (the message says what and why).
set -euo pipefail
cd "$(dirname "$0")/.."

stage=${1:-}
venv=${VENV:-.venv}
requirements_dir=${REQUIREMENTS:-tools}
python=${PYTHON:-python3}
logs=${LOGS:-build/logs}

say() { echo "setup: $*"; }
fail() {
  echo "setup: $*" >&2
  exit 3
}
listed() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$@"; }

case $stage in
  demo) packages=(build) requirements=(libtorch) ;;
  build) packages=(build) requirements=(libtorch) ;;
  test) packages=(build test) requirements=(libtorch cuda test) ;;
  ci) packages=(build test ci) requirements=(libtorch cuda test) ;;
  packages) packages=(build test) requirements=() ;;
  *)
    echo "usage: tools/setup.sh demo|build|test|ci|packages" >&2
    exit 2
    ;;
esac

[ -n "${LIBTORCH:-}" ] || packages+=(venv)
# The CUDA module is of use where a CUDA compiler or a driver is.
has_cuda() { command -v nvcc /usr/local/cuda/bin/nvcc nvidia-smi >/dev/null || [ -e /dev/nvidiactl ]; }
if [ "$stage" = build ] && has_cuda; then
  requirements+=(cuda)
fi

missing_packages() {
  local name
  for name in "${packages[@]}"; do
    listed "tools/apt-packages-$name.txt"
  done | sort -u >"$logs/wanted"
  # It exits with 1 where one of them is unknown.
  { dpkg-query -W -f '${Package} ${db:Status-Status}\n' $(cat "$logs/wanted") 2>/dev/null || true; } |
    sed -n 's/ installed$//p' | sort -u | comm -23 "$logs/wanted" -
}

install_packages() {
  local missing as_root=() command
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: taking the packages of tools/apt-packages-*.txt as installed"
    return
  fi
  missing=$(missing_packages | xargs)
  [ -n "$missing" ] || return 0
  command="apt-get update && apt-get install -y --no-install-recommends $missing"
  if [ "$(id -u)" != 0 ]; then
    as_root=(sudo -n)
    [ -t 0 ] && as_root=(sudo)
    "${as_root[@]}" true 2>/dev/null ||
      fail "Debian packages are missing and this user may not install them. As root, run: $command"
  fi
  say "installing Debian packages: $missing"
  if ! { "${as_root[@]}" apt-get update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } \
    >"$logs/apt.log" 2>&1 </dev/null; then
    fail "the Debian packages $missing could not be installed ($(reason "$logs/apt.log")). Mend that, or run as root: $command (apt's own words: $logs/apt.log)"
  fi
}

# The likeliest reason in a log of apt or pip, in a few words.
reason() {
  if grep -qi 'no space left' "$1"; then
    echo "the disk is full"
  elif grep -qiE 'could not resolve|name resolution|failed to establish|connection (refused|timed out)|network is unreachable|unable to connect|cannot connect|timed out|proxy' "$1"; then
    echo "no network, or its server does not answer"
  elif grep -qiE 'unable to locate|no matching distribution|has no installation candidate' "$1"; then
    echo "the package source does not have it for this system"
  else
    echo "see the log"
  fi
}

# A stamp, written last, holds what has been installed; where it differs, pip is asked again.
install_requirements() {
  local name=$1 file=$requirements_dir/requirements-$1.txt stamp=$venv/.bellows-$1 log=$logs/pip.log
  cmp -s "$file" "$stamp" && return
  rm -f "$stamp"
  "$venv/bin/python" tools/venv_repair.py
  say "installing $(listed "$file" | head -n 1)$(size_of "$name") into $venv"
  if ! "$venv/bin/python" -m pip install --no-deps --no-input --disable-pip-version-check --retries 3 \
    -r "$file" >"$log" 2>&1 </dev/null; then
    fail "$(listed "$file" | xargs) could not be installed into $venv ($(reason "$log")). Mend that and run make again, or set LIBTORCH to the folder of a LibTorch you have (pip's own words: $log)"
  fi
  if [ "$name" = test ] && ! "$venv/bin/python" -c 'import torch, torchvision, safetensors, tensorboard' >>"$log" 2>&1; then
    fail "the Python packages of the tests are installed in $venv but cannot be imported. Remove $venv and run make again (Python's own words: $log)"
  fi
  cp "$file" "$stamp"
}

size_of() {
  case $1 in
    libtorch) echo " (about 0.6 GB to fetch, 1.2 GB on disk)" ;;
    cuda) echo " and the other CUDA libraries (about 2 GB to fetch, 4 GB on disk)" ;;
    test) echo " and PyTorch's other Python packages" ;;
  esac
}

make_venv() {
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
  say "making $venv"
  "$python" -m venv --clear "$venv" >"$logs/venv.log" 2>&1 ||
    fail "the Python environment $venv could not be made ($(reason "$logs/venv.log")). Install python3-venv, or set LIBTORCH to the folder of a LibTorch you have (Python's own words: $logs/venv.log)"
}

all_stamped() {
  local name
  [ ${#requirements[@]} != 0 ] || return 0
  for name in "${requirements[@]}"; do
    cmp -s "$requirements_dir/requirements-$name.txt" "$venv/.bellows-$name" || return 1
  done
  [ -x "$venv/bin/python" ]
}

mkdir -p "$logs"
exec 9>"$logs/setup.lock"
# Two makes at once, or a pip that outlived its make: wait for it, and find everything done.
flock --nonblock 9 || { say "waiting for another set-up to end" && flock 9; }
install_packages
if [ -n "${LIBTORCH:-}" ]; then
  say "taking LibTorch from $LIBTORCH"
elif ! all_stamped; then
  make_venv
  for name in "${requirements[@]}"; do
    install_requirements "$name"
  done
fi
