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

# need_packages NAME…: installs the Debian packages that are missing (root), or says which and stops.
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
    local apt=(apt-get -qq -o DPkg::Lock::Timeout=300)
    {
        DEBIAN_FRONTEND=noninteractive "${apt[@]}" install --no-install-recommends -y "${missing[@]}" 2>/dev/null \
            || {
                "${apt[@]}" update
                DEBIAN_FRONTEND=noninteractive "${apt[@]}" install --no-install-recommends -y "${missing[@]}"
            }
    } </dev/null >&2 || die "could not install ${missing[*]}"
}

# debian_mirror: the archive this machine installs from, empty where apt does not say.
debian_mirror() {
    local codename
    # shellcheck disable=SC1091 # the host's file
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    # shellcheck disable=SC2016 # $(…) is apt's own format
    apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null \
        | awk -v codename="$codename" '$1 == codename && $2 == "main" && $3 ~ /^http/ { print $3; exit }' || true
}
