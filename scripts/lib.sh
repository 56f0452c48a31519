# Shared by scripts, which source it from the repository's root.
# shellcheck shell=bash

# Where set-up keeps what it makes: a daemon's log, downloaded packages.
AIVORY_CACHE_DIR=${AIVORY_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/aivory-sandbox}
export AIVORY_CACHE_DIR

# Where images are for runners without Docker; tests and `make run` share them.
SANDBOX_IMAGE_DIR=${SANDBOX_IMAGE_DIR:-$AIVORY_CACHE_DIR/images}
export SANDBOX_IMAGE_DIR
# Programs that set-up has fetched.
PATH=$PATH:$AIVORY_CACHE_DIR/bin

say() { printf '[%4ds] %s\n' "$SECONDS" "$*" >&2; }
die() {
    printf '\n%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# usage: prints the comment that a script of this directory begins with.
usage() { sed -n '2,/^set /{s/^# \{0,1\}//p}' "scripts/${0##*/}"; }

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

# trixie_package NAME: fetches a package of Debian 13 that brings a program which
# needs nothing else, and puts that in the cache directory's bin.
trixie_package() {
    local name=$1 dir=$AIVORY_CACHE_DIR/trixie mirror apt
    [ ! -x "$AIVORY_CACHE_DIR/bin/$name" ] || return 0
    command -v apt-get >/dev/null || die "needs $name, and there is no apt-get to fetch it with"
    say "fetching $name from Debian 13"
    mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" "$AIVORY_CACHE_DIR/bin"
    mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format "\$(LABEL)|\$(REPO_URI)" 'Created-By: Packages' 2>/dev/null |
        sed -n 's/^Debian|//p' | head -n 1)}
    packages debian-archive-keyring
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} trixie main" >"$dir/sources.list"
    apt=(-qq -o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$dir/lists"
        -o Dir::Cache="$dir/cache" -o Acquire::Languages=none -o APT::Sandbox::User=root)
    rm -rf "$dir/$name"
    mkdir "$dir/$name"
    (cd "$dir/$name" && apt-get "${apt[@]}" update && apt-get "${apt[@]}" download "$name" && dpkg-deb -x ./*.deb .) >"$dir/log" 2>&1 ||
        { tail -n 15 "$dir/log" >&2; die "cannot fetch $name; log: $dir/log"; }
    ln -sf "$dir/$name/usr/bin/$name" "$AIVORY_CACHE_DIR/bin/$name"
}

# docker_answers: whether there is a Docker daemon to be used.
docker_answers() {
    command -v docker >/dev/null && timeout 15 docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}

# remove_runners INSTANCE: removes what a service without Docker left running.
remove_runners() {
    local run=/run/aivory-sandbox/$1 bundle
    for bundle in "$run"/bundles/*; do
        [ -e "$bundle" ] || continue
        "${SANDBOX_RUNTIME:-runc}" --root "$run/state" delete --force "${bundle##*/}" || true
    done
    rm -rf "$run"
}

# go_toolchain: finds Go, also where it is installed but not on the path.
go_toolchain() {
    command -v go >/dev/null || PATH=$PATH:/usr/local/go/bin:/usr/lib/go/bin
    command -v go >/dev/null || die 'needs Go 1.26 or later: https://go.dev/dl'
}
