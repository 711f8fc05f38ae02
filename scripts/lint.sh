#!/usr/bin/env bash
# usage: lint.sh [format | tidy [BUILD_DIR [FILE...]] | slow [BUILD_DIR] | layers | words | fix | all]
#
# format, tidy, layers and words check; fix reformats in place; all (the default) checks everything.
# tidy reads BUILD_DIR/compile_commands.json (default: build/release), and only what has changed since
# it was clean (cached_tidy.py); without FILE it leaves out the slowest checks, which slow has.
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
for folder in ferry bindings packaging standin tests bench; do
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

# Over a third of the time of all.
slow=performance-unnecessary-value-param,bugprone-reserved-identifier,bugprone-stringview-nullptr
only=  # the checks to run, where not all

tidy() {
  require clang-tidy
  require python3
  local build=${1:-build/release}
  shift || true
  if [[ ! -f $build/compile_commands.json ]]; then
    echo "lint.sh: no $build/compile_commands.json: configure that build first" >&2
    exit 1
  fi
  # Where CUDA was not found, its headers are missing, too.
  local skip='^tests/(consumer|options)/|^examples/cpp/'
  if ! grep -q ferry/cuda/real/ "$build/compile_commands.json"; then
    echo "lint.sh: ferry/cuda/real is left out, as it is in $build"
    skip+='|^ferry/cuda/real/'
  fi
  if ! grep -q bindings/python/ "$build/compile_commands.json"; then
    echo "lint.sh: bindings/python is left out, as it is in $build"
    skip+='|^bindings/python/'
  fi
  local files=("$@") checks=()
  if ((! $#)); then
    # All of a folder as one, which takes a fifth of the time. Not found so are an alias of a
    # namespace that nobody uses, and a using-declaration that only another file uses.
    mapfile -t files < <(sources '*.cc' | grep -zvE "$skip" |
      xargs -0 python3 scripts/tidy_units.py "$build")
    build+=/tidy
    checks=("--checks=-bugprone-suspicious-include,${only:--${slow//,/,-}}")
  fi
  mapfile -t files < <(printf '%s\n' "${files[@]}" | grep -vE "$skip")
  if ((! ${#files[@]})); then return; fi
  # g++ alone reads some of our warning flags.
  nice python3 scripts/cached_tidy.py "$build" "${files[@]}" -- "${checks[@]}" \
    --extra-arg=-Wno-unknown-warning-option
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
  slow) only="-*,$slow" && tidy "$@" ;;
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
    sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
