# shellcheck shell=bash
# Sourced first by every bench/NAME/run that is a shell script. Changes to the repository's root,
# answers --help with the head of the bench's README.md before anything is built, and provides
# `build` for the programs that the bench needs. Sets: here (the bench's directory), bin (where
# cargo puts programs), args (the arguments for the program).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
bin="${CARGO_TARGET_DIR:-target}/release"
builds=yes args=()
for arg in "$@"; do
  case $arg in
    -h | --help) exec sed "/^## /Q" "$here/README.md" ;;
    --no-build) builds=no ;;
    *) args+=("$arg") ;;
  esac
done

# Builds these packages, unless --no-build says to use the existing ones.
build() {
  [ "$builds" = no ] || cargo build --quiet --release "${@/#/--package=}"
}
