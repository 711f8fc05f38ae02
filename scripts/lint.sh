#!/usr/bin/env bash
# usage: lint.sh [format | tidy [BUILD_DIR [--all | --slow] [--record] [FILE...]] | layers | words | fix | all]
#
# format, tidy, layers and words check; fix reformats in place; all (the default) checks everything.
# tidy reads BUILD_DIR/compile_commands.json (default: build/release), and without FILE only what has
# changed since it was clean (tidy.py).
# Exits 77 when the tool that a mode needs is not installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

require() {
  if ! command -v "$1" >/dev/null; then
    echo "skipped: $1 is not installed"
    exit 77
  fi
}

folders=()
for folder in ferry plugins python tools packaging standin tests bench; do
  if [[ -d $folder ]]; then folders+=("$folder"); fi
done

sources() {  # sources PATTERN...: the files below our folders whose name matches, NUL-separated
  local names=()
  for pattern in "$@"; do names+=(-o -name "$pattern"); done
  find "${folders[@]}" -type f \( "${names[@]:1}" \) -print0 | sort -z
}

format() {
  require clang-format
  sources '*.h' '*.cc' '*.cu' '*.cuh' | xargs -0 -r clang-format --style=file "$@"
}

tidy() {
  require python3
  local build=${1:-build/release}
  shift || true
  python3 scripts/tidy.py "$build" "$@"
}

layers() {
  require python3
  python3 scripts/check_layers.py
}

words() {
  require python3
  python3 scripts/check_words.py
}

mode=${1:-all}
shift || true
case $mode in
  format) format --dry-run --Werror ;;
  tidy) tidy "$@" ;;
  layers) layers ;;
  words) words ;;
  fix) format -i ;;
  all)
    layers
    words
    format --dry-run --Werror
    tidy "$@"
    ;;
  *)
    sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
