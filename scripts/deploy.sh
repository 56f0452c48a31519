#!/usr/bin/env bash
# Makes ready what the tests of the deployment need: docker-compose, for long tests
# Compose 2 as well, systemd-analyze, and an image of HAProxy and runc in place of public ones, which a registry would have
# to give. It is Debian 13's: versions before 3.0.5 cannot pass on a connection that
# is upgraded, and Debian 12's is one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

tag=aivory-haproxy:3.0 # as the tests name it
scripts/docker.sh
packages docker-compose systemd

# Debian 12 has Compose 1.29 alone. The second one takes four minutes of a CPU, so it
# is for the long tests; they find it by this name.
compose=2.40.3
program=$AIVORY_CACHE_DIR/bin/docker-compose-$compose
if [ -n "${AIVORY_SOAK:-}" ] && [ ! -x "$program" ]; then
    go_toolchain
    say "building Compose $compose; this takes some minutes, once"
    mkdir -p "$AIVORY_CACHE_DIR/bin"
    # Not go install: that refuses a module that excludes versions of others.
    source=$(go mod download -json "github.com/docker/compose/v2@v$compose" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [ -n "$source" ] || die "cannot download Compose $compose"
    (cd "$source" && CGO_ENABLED=0 GOFLAGS=-buildvcs=false go build -trimpath \
        -ldflags "-s -w -X github.com/docker/compose/v2/internal.Version=v$compose" -o "$program.new" ./cmd) >"$AIVORY_CACHE_DIR/compose.log" 2>&1 ||
        { tail -n 15 "$AIVORY_CACHE_DIR/compose.log" >&2; die "cannot build Compose; log: $AIVORY_CACHE_DIR/compose.log"; }
    mv "$program.new" "$program"
fi

if docker image inspect "$tag" >/dev/null 2>&1; then exit 0; fi
packages mmdebstrap debian-archive-keyring
say "making $tag"
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format "\$(LABEL)|\$(REPO_URI)" 'Created-By: Packages' 2>/dev/null |
    sed -n 's/^Debian|//p' | head -n 1)}
mkdir -p "$AIVORY_CACHE_DIR"
mmdebstrap --quiet --variant=apt --include=haproxy,runc --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/usr/share/doc "$1"/usr/share/man' \
    trixie - "deb ${mirror:-http://deb.debian.org/debian} trixie main" 2>"$AIVORY_CACHE_DIR/haproxy.log" |
    docker import -c 'ENTRYPOINT ["haproxy"]' -c 'CMD ["-f", "/usr/local/etc/haproxy/haproxy.cfg"]' - "$tag" >/dev/null ||
    { tail -n 15 "$AIVORY_CACHE_DIR/haproxy.log" >&2; die "cannot make $tag"; }
