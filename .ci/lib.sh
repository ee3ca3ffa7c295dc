# Sourced by every step script: strict mode, the repository's root as working directory, and some functions. Plain
# bash 3.2, so that a stock macOS runs it too.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
step="${0##*/}"
# Variables that the caller set for other runs (fewer seeds, a planted bug) must not affect CI.
unset ${!RESCIND_@}

say() { printf '== %s: %s\n' "$step" "$*"; }
fail() {
    printf '%s failed: %s\n' "$step" "$*" >&2
    exit 1
}

# need TOOL HOW-TO-GET-IT
need() {
    command -v "$1" >/dev/null 2>&1 || fail "it needs \`$1\`, which is not on the PATH. $2"
}

need_cargo() { need cargo "Install a Rust toolchain with rustup."; }

# run COMMAND ARG...: prints the command, then runs it.
run() {
    printf '+ %s\n' "$*"
    "$@"
}

# with_deadline SECONDS COMMAND ARG...: stdin is empty; after the deadline the command is killed and 124 returned.
with_deadline() {
    local end=$((SECONDS + $1)) pid
    shift
    "$@" </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        if [ "$SECONDS" -ge "$end" ]; then
            kill -9 "$pid" 2>/dev/null || true
            wait "$pid" 2>/dev/null || true
            return 124
        fi
        sleep 0.1
    done
    wait "$pid"
}

# release_programs: the programs `rescind` and `soak` in release, built with one command that all steps share; they
# are in $programs.
release_programs() {
    say "the programs, in release"
    run cargo build --release --locked -p rescind-cli -p rescind-integration-tests --bins
    programs=${CARGO_TARGET_DIR:-$root/target}/release
}

# copy_tree FOLDER: copies the files of the work tree that git knows or does not ignore.
copy_tree() {
    git ls-files --cached --others --exclude-standard | while IFS= read -r file; do
        [ ! -f "$file" ] || printf '%s\n' "$file"
    done | tar -cf - -T - | tar -xf - -C "$1"
}
