#!/bin/bash
# Builds the runner image without a registry, from Debian packages alone.
#
#   build.sh [TAG]             image TAG (default aivory-sandbox:latest) in Docker
#   build.sh --rootfs FILE     the root file system as a tar file, no Docker needed
#   build.sh --rootfs FILE TAG both, built once
#   build.sh --print-rootfs    prints where in the cache the root file system is, and
#                              nothing else on standard output; no Docker needed
#   --force                    build even when nothing has changed
#
# Does nothing when the image is there and was made from the same files in the
# same month (AIVORY_IMAGE_PERIOD takes the month's place; any fixed word there
# means: never rebuild for age alone).
#
# DEBIAN_MIRROR, DEBIAN_SECURITY_MIRROR: where packages come from; default: what
# this machine's apt uses, else deb.debian.org.
# SOURCE_DATE_EPOCH: seconds since 1970; with it, and with one state of the mirror,
# two builds give the same bytes.
# AIVORY_CACHE_DIR: downloaded packages and the last root file system;
# default ~/.cache/aivory-sandbox.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dockerfile=$here/../../Dockerfile.runner
suite=trixie

die() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }
say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }

tag='' rootfs='' print='' force=''
while [ $# -gt 0 ]; do
    case $1 in
        --rootfs) [ $# -ge 2 ] || die '--rootfs wants a file name'; rootfs=$2; shift ;;
        --print-rootfs) print=yes ;;
        --force) force=yes ;;
        -h | --help) sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
        -*) die "unknown option: $1" ;;
        *) [ -z "$tag" ] || die "one tag only, not also: $1"; tag=$1 ;;
    esac
    shift
done
if [ -z "$tag$rootfs$print" ]; then tag=aivory-sandbox:latest; fi
if [ -n "$print" ]; then exec 8>&1 >&2; fi

cache=${AIVORY_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/aivory-sandbox}
mkdir -p "$cache/debs"

# --- what this machine must have -------------------------------------------

command -v apt-get >/dev/null || die 'wants a Debian machine (apt-get); elsewhere use Dockerfile.runner'

wanted=()
command -v mmdebstrap >/dev/null || wanted+=(mmdebstrap)
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || wanted+=(debian-archive-keyring)
if [ -n "$tag" ] && ! command -v docker >/dev/null; then
    # Newer Debian splits the command from the engine.
    wanted+=(docker.io)
    if apt-cache show docker-cli >/dev/null 2>&1; then wanted+=(docker-cli); fi
fi
if [ ${#wanted[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] || die "install first: apt-get install ${wanted[*]}"
    say "installing ${wanted[*]}"
    apt-get update -qq || say 'apt-get update failed; trying with the lists at hand'
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}" >/dev/null ||
        die "cannot install ${wanted[*]}"
fi
if [ -n "$tag" ]; then
    docker version >/dev/null 2>&1 || die 'the Docker engine does not answer (docker version fails); start it, or use --rootfs FILE'
fi

# Two builds at once would do the same work twice, in the same cache.
exec 9>"$cache/lock"
flock -n 9 || { say 'waiting for another build'; flock 9; }

# --- is there anything to do? ----------------------------------------------

arch=$(dpkg --print-architecture)
inputs=$(
    cd "$here"
    {
        echo "$arch $suite ${AIVORY_IMAGE_PERIOD:-$(date -u +%Y-%m)} ${SOURCE_DATE_EPOCH:-}"
        sha256sum packages.txt requirements.txt dpkg-trim.conf setup.sh build.sh files/*
        sha256sum <"$dockerfile"
    } | sha256sum | cut -c1-32
)
# A release's does not take the place of the one that is worked with.
kind=rootfs
if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then kind=dated; fi
tar=$cache/$kind-$arch-$inputs.tar

if [ -n "$tag" ] && [ -z "$force" ]; then
    have=$(docker image inspect --format '{{index .Config.Labels "aivory.image.inputs"}}' "$tag" 2>/dev/null || true)
    if [ "$have" = "$inputs" ]; then
        say "$tag is up to date"
        tag=''
        [ -n "$rootfs$print" ] || exit 0
    fi
fi

# --- the root file system --------------------------------------------------

# What apt uses here for the archive with the given label.
mirror_of() {
    apt-get indextargets --format "\$(LABEL)|\$(REPO_URI)" 'Created-By: Packages' 2>/dev/null |
        sed -n "s/^$1|//p" | head -n 1
}

build_rootfs() {
    local mirror security packages log
    mirror=${DEBIAN_MIRROR:-$(mirror_of Debian)}
    mirror=${mirror:-http://deb.debian.org/debian}
    security=${DEBIAN_SECURITY_MIRROR:-$(mirror_of Debian-Security)}
    security=${security:-http://deb.debian.org/debian-security}
    packages=$(sed 's/#.*//' "$here/packages.txt" | xargs | tr ' ' ',')
    part=$cache/part.$$.tar log=$cache/build.log
    # Also when interrupted: mmdebstrap then removes its own temporary files.
    trap 'kill "$builder" 2>/dev/null || true; rm -f "$part"' EXIT

    say "building Debian $suite ($arch) from $mirror; log: $log"
    # The packages travel through the cache, so that a second build downloads
    # nothing; autoclean drops those that a newer version has replaced.
    # In the hooks "$1" is the root file system, filled in by mmdebstrap.
    # shellcheck disable=SC2016
    mmdebstrap --variant=minbase --architectures="$arch" --format=tar \
        --include="$packages" \
        --skip=essential/unlink,cleanup/reproducible \
        --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
        --setup-hook='mkdir -p "$1/var/cache/apt/archives"' \
        --setup-hook="sync-in '$cache/debs' /var/cache/apt/archives" \
        --essential-hook='mkdir "$1/tmp/runner"' \
        --essential-hook="sync-in '$here' /tmp/runner" \
        --essential-hook='chroot "$1" bash /tmp/runner/setup.sh before' \
        --customize-hook='chroot "$1" apt-get autoclean -qq' \
        --customize-hook="sync-out /var/cache/apt/archives '$cache/debs'" \
        --customize-hook='chroot "$1" bash /tmp/runner/setup.sh' \
        --customize-hook='rm -rf "$1/tmp/runner"' \
        "$suite" "$part" \
        "deb $mirror $suite main" "deb $mirror $suite-updates main" "deb $security $suite-security main" \
        >"$log" 2>&1 &
    builder=$!
    wait_for "$builder" "$log" || { tail -n 25 "$log" >&2; die "the build failed; whole log: $log"; }
    # Only the newest is worth its space.
    find "$cache" -maxdepth 1 -name "$kind-*.tar*" -delete
    mv "$part" "$tar"
    trap - EXIT
    grep -h '^setup: not installed' "$log" >"$tar.notes" || true
    say "root file system: $(du -h "$tar" | cut -f1)"
}

# Waits for process $1 and tells now and then what its log $2 is about.
wait_for() {
    local last='' line
    while kill -0 "$1" 2>/dev/null; do
        sleep 3
        line=$(grep -aE '^(I: (updating|downloading|extracting|installing|creating)|setup: )' "$2" | tail -n 1 || true)
        if [ "$line" != "$last" ]; then say "${line#I: }"; last=$line; fi
    done
    wait "$1"
}

if [ -n "$force" ] || [ ! -e "$tar" ]; then build_rootfs; else say 'root file system is in the cache'; fi

# --- where it goes ---------------------------------------------------------

if [ -n "$print" ]; then echo "$tar" >&8; fi

if [ -n "$rootfs" ]; then
    cp --reflink=auto "$tar" "$rootfs"
    say "wrote $rootfs"
fi

if [ -n "$tag" ]; then
    # The image's settings stand once, in Dockerfile.runner.
    changes=()
    while IFS= read -r line; do changes+=(--change "$line"); done \
        < <(grep -E '^(ENV|LABEL|WORKDIR|USER|CMD) ' "$dockerfile")
    old=$(docker image inspect --format '{{.Id}}' "$tag" 2>/dev/null || true)
    say "importing $tag"
    docker import --change "LABEL aivory.image.inputs=$inputs" "${changes[@]}" "$tar" "$tag" >/dev/null
    # What bore the tag before, unless it has another name or is in use.
    if [ -n "$old" ] && [ -z "$(docker image inspect --format '{{join .RepoTags ""}}' "$old")" ]; then
        docker rmi "$old" >/dev/null 2>&1 || true
    fi
    say "$tag: $(docker image inspect --format '{{.Size}}' "$tag" | numfmt --to=iec)"
fi
sed 's/^setup: //' "$tar.notes" 2>/dev/null || true
