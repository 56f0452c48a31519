# Shared by scripts, which source it from the repository's root.
# shellcheck shell=bash

# Where set-up keeps what it makes: a daemon's log, downloaded packages.
AIVORY_CACHE_DIR=${AIVORY_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/aivory-sandbox}
export AIVORY_CACHE_DIR

say() { printf '[%4ds] %s\n' "$SECONDS" "$*" >&2; }
die() {
    printf '\n%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# packages NAME...: installs the Debian packages that are not there.
packages() {
    local missing=() name
    for name; do
        dpkg-query -W -f '${db:Status-Abbrev}' "$name" 2>/dev/null | grep -q '^ii' || missing+=("$name")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "needs ${missing[*]}, and there is no apt-get to install it with"
    [ "$(id -u)" = 0 ] || die "needs packages; as root: apt-get install ${missing[*]}"
    say "installing ${missing[*]}"
    local log=$AIVORY_CACHE_DIR/apt.log
    mkdir -p "$AIVORY_CACHE_DIR"
    # The lists at hand are tried first: refreshing them takes longer than most packages.
    apt_install "${missing[@]}" >"$log" 2>&1 ||
        { apt-get update -qq >>"$log" 2>&1 && apt_install "${missing[@]}" >>"$log" 2>&1; } ||
        { tail -n 15 "$log" >&2; die "cannot install ${missing[*]}; log: $log"; }
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@"
}

# go_toolchain: finds Go, also where it is installed but not on the path.
go_toolchain() {
    command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin:/usr/lib/go/bin
    command -v go >/dev/null || die 'needs Go 1.26 or later: https://go.dev/dl'
}
