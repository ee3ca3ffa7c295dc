# Sourced by every step script: strict mode, the repository's root as working directory, and some functions. Plain
# bash 3.2, so that a stock macOS runs it too.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
step="${0##*/}"
# Variables that the caller set for other runs (fewer seeds, a planted bug) must not affect CI.
unset ${!RESCIND_@}

say() { printf '== %s, %d s: %s\n' "$step" "$SECONDS" "$*"; }
fail() {
    printf '%s failed: %s\n' "$step" "$*" >&2
    exit 1
}

# need TOOL HOW-TO-GET-IT
need() {
    command -v "$1" >/dev/null 2>&1 || fail "it needs \`$1\`, which is not on the PATH. $2"
}

need_cargo() { need cargo "Install a Rust toolchain with rustup."; }

# apt_get ARG..: as root, one at a time, because steps run side by side.
apt_get() {
    local as_root=""
    [ "$(id -u)" -eq 0 ] || as_root="sudo -n"
    run flock "${TMPDIR:-/tmp}/rescind-apt.lock" $as_root env DEBIAN_FRONTEND=noninteractive apt-get "$@"
}

# debian_rust RELEASE [PACKAGE..]: Debian's compiler of this release and these packages, with the libraries that are not installed here,
# unpacked into the target folder and not installed. Sets $compiler to its `bin` folder, and $libraries to the LD_LIBRARY_PATH
# that it needs.
debian_rust() {
    local release=$1 place version name folder missing
    shift
    need apt-get "Debian's packages are unpacked here."
    need dpkg "It comes with Debian."
    version_of() { apt-cache madison rustc-web 2>/dev/null | awk -v wanted="$release." '{ sub(/^[0-9]+:/, "", $3) } index($3, wanted) == 1 { print $3; exit }'; }
    version=$(version_of)
    if [ -z "$version" ]; then
        apt_get update -qq
        version=$(version_of)
    fi
    [ -n "$version" ] || fail "Debian here has no rustc-web $release"
    place=${CARGO_TARGET_DIR:-$root/target}/debian-rust/$version
    # Which packages are there: a step may ask for more than the one before it.
    for name in "rustc-web=$version" "cargo-web=$version" "libstd-rust-web-dev=$version" "libstd-rust-web-$release=$version" "$@"; do
        [ -e "$place/complete/${name%%=*}" ] || missing="${missing:+$missing }${name%%=*}=$version"
    done
    if [ -n "${missing:-}" ]; then
        mkdir -p "$place/packages/partial" "$place/complete"
        # shellcheck disable=SC2086 # names of packages, split on purpose
        apt_get install -qq -y --download-only --no-install-recommends -o Dir::Cache::archives="$place/packages/" $missing
        for name in "$place/packages"/*.deb; do dpkg -x "$name" "$place"; done
        rm -f "$place/packages"/*.deb
        for name in $missing; do : >"$place/complete/${name%%=*}"; done
    fi
    compiler=$place/usr/bin
    libraries=""
    for folder in "$place"/usr/lib/*-linux-gnu "$place/usr/lib" "$place"/lib/*-linux-gnu; do
        libraries="${libraries:+$libraries:}$folder"
    done
    missing=$(LD_LIBRARY_PATH="$libraries" ldd "$compiler/rustc" "$compiler/cargo" | grep 'not found' | sort -u || true)
    [ -z "$missing" ] || fail "the unpacked compiler needs libraries that are not here: $missing"
}

# cross_rust NAME: Debian's compilers for other targets than this machine's, building in the folder NAME of the target folder. Sets
# $place to the folder. `musl_tools` and `windows_tools` bring what their targets need.
cross_rust() {
    place=${CARGO_TARGET_DIR:-$root/target}/$1
    mkdir -p "$place"
    debian_rust 1.96 rust-web-src
}

# there TARGET COMMAND ARG..: cargo, for this target, with the flags $there_flags besides.
there() {
    local target=$1 command=$2 flags="-D warnings${there_flags:+ $there_flags}"
    shift 2
    printf '+ cargo %s --target %s %s\n' "$command" "$target" "$*"
    LD_LIBRARY_PATH="$libraries" RUSTC="$compiler/rustc" RUSTDOC="$compiler/rustdoc" RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR="$place/build" \
        CC_x86_64_unknown_linux_musl=musl-gcc CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER="$place/musl-link" \
        CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUSTFLAGS="$flags -C target-feature=+crt-static -C link-self-contained=no -L native=$place" \
        CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="$flags" \
        CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=x86_64-w64-mingw32-gcc CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUSTFLAGS="$flags" \
        CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER="$place/wine" \
        "$compiler/cargo" "$command" --locked --target "$target" -Z build-std=std,panic_unwind,test "$@"
}

# musl_tools: what `there` needs for x86_64-unknown-linux-musl. The standard library asks for the unwinder of LLVM, which Debian has for
# glibc only. That of gcc has the same functions, and asks glibc for the unwind table of an address, which this finds.
musl_tools() {
    command -v musl-gcc >/dev/null || apt_get install -qq -y --no-install-recommends musl-tools
    cat >"$place/find_object.c" <<'C'
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
/* It names these weakly, and a static library gives only what is asked for. */
__attribute__((used)) static void *const needed[] = { pthread_once, pthread_mutex_lock, pthread_mutex_unlock, pthread_key_create,
    pthread_getspecific, pthread_setspecific };
struct found { unsigned long long flags; void *start, *end; struct link_map *map; void *table; unsigned long long reserved[7]; };
struct search { unsigned long pc; struct found *found; };
static int look(struct dl_phdr_info *object, size_t size, void *data) {
    struct search *search = data;
    const ElfW(Phdr) *table = 0, *holds = 0;
    (void)size;
    for (int at = 0; at < object->dlpi_phnum; at++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[at];
        if (part->p_type == PT_GNU_EH_FRAME) table = part;
        if (part->p_type == PT_LOAD && search->pc - (object->dlpi_addr + part->p_vaddr) < part->p_memsz) holds = part;
    }
    if (!holds || !table) return 0;
    search->found->start = (void *)(object->dlpi_addr + holds->p_vaddr);
    search->found->end = (char *)search->found->start + holds->p_memsz;
    search->found->table = (void *)(object->dlpi_addr + table->p_vaddr);
    return 1;
}
int _dl_find_object(void *pc, struct found *found) {
    struct search search = { (unsigned long)pc, found };
    *found = (struct found){ 0 };
    return dl_iterate_phdr(look, &search) ? 0 : -1;
}
C
    # musl-gcc knows no static program that can be loaded at any address.
    printf '#!/bin/bash\nexec musl-gcc "${@/#-static-pie/-static}"\n' >"$place/musl-link"
    chmod +x "$place/musl-link"
    run musl-gcc -O1 -fPIC -c -o "$place/find_object.o" "$place/find_object.c"
    printf 'GROUP ( %s %s %s )\n' "$(gcc -print-file-name=libgcc_eh.a)" "$place/find_object.o" "$(gcc -print-file-name=libgcc.a)" >"$place/libunwind.a"
}

# windows_tools: what `there` needs for x86_64-pc-windows-gnu. The C library of mingw and the unwinder of its gcc are Debian's. So the
# standard library is built here.
windows_tools() {
    command -v x86_64-w64-mingw32-gcc >/dev/null || apt_get install -qq -y --no-install-recommends gcc-mingw-w64-x86-64-win32
    need x86_64-w64-mingw32-gcc "It is in Debian's gcc-mingw-w64-x86-64-win32."
}

# npm_packages: the packages of the lock file in the working directory, unless they are there.
npm_packages() {
    [ node_modules/.package-lock.json -nt package-lock.json ] || run npm ci --ignore-scripts --no-audit --no-fund
}

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

# One build of the tests in debug, and one in release, serves all steps: cargo builds a crate again for each other set of
# features, and a command for one package asks for other features than one for the workspace.

# built_tests [CARGO-ARGUMENT..]: prints a line for each test program and example of the workspace: PACKAGE-FOLDER:NAME, the
# package's folder, and the program, with tabs between.
built_tests() {
    need python3 "Install Python 3.11." >&2
    cargo test --workspace --locked --no-run --message-format=json-render-diagnostics "$@" | python3 -c '
import json, os, sys
for line in sys.stdin:
    message = json.loads(line) if line.startswith("{") else {}
    target, folder = message.get("target", {}), os.path.dirname(message.get("manifest_path", ""))
    if message.get("executable") and (message["profile"]["test"] or target["kind"] == ["example"]):
        name = target["name"] + ("" if target["kind"] in (["test"], ["example"]) else "-" + target["kind"][0])
        print(os.path.basename(folder) + ":" + name, folder, message["executable"], sep="\t")' | sort
}

# built NAME: sets $folder and $program to what $built_tests has for this name.
built() {
    local line
    line=$(awk -F'\t' -v name="$1" '$1 == name' <<<"$built_tests")
    [ -n "$line" ] || fail "there is no program $1 among those of the tests"
    folder=$(cut -f 2 <<<"$line")
    program=$(cut -f 3 <<<"$line")
}

# run_test NAME ARG..: runs a test program in the folder of its package, as cargo does.
run_test() {
    local folder program name=$1
    shift
    built "$name"
    printf '+ %s %s\n' "$name" "$*"
    (cd "$folder" && CARGO_MANIFEST_DIR="$folder" "$program" "$@")
}

# debug_tests, release_tests: build, and set $built_tests. In release only the engines are built, and with them the programs
# `rescind` and `soak`; those are in $programs. `.ci/run` builds both once: their lists are files in the folder $CI_BUILT then.
debug_tests() {
    say "the tests, in debug"
    built_once debug
    : "${RUST_TEST_THREADS:=$(sed -n 's/^RUST_TEST_THREADS = "\(.*\)"/\1/p' .cargo/config.toml)}"
    export RUST_TEST_THREADS
}
release_tests() {
    say "the engines and the programs, in release"
    built_once release --release --test attacks --test program_attacks --test faults --test search --test reference --test sim --test cancel_bus --test matrix
}
built_once() {
    local profile=$1
    shift
    programs=${CARGO_TARGET_DIR:-$root/target}/$profile
    if [ -n "${CI_BUILT:-}" ] && [ -s "$CI_BUILT/$profile" ]; then
        built_tests=$(cat "$CI_BUILT/$profile")
        return
    fi
    built_tests=$(built_tests "$@")
    [ -z "${CI_BUILT:-}" ] || printf '%s\n' "$built_tests" >"$CI_BUILT/$profile"
}

# copy_tree FOLDER: copies the files of the work tree that git knows or does not ignore.
copy_tree() {
    git ls-files --cached --others --exclude-standard | while IFS= read -r file; do
        [ ! -f "$file" ] || printf '%s\n' "$file"
    done | tar -cf - -T - | tar -xf - -C "$1"
}
