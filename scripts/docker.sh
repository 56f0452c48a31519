#!/usr/bin/env bash
# Makes sure that a Docker daemon answers. Does nothing where one does; else
# installs Docker from Debian's packages where it is missing, and starts it.
# A daemon that this script starts by itself keeps running; its log and process
# id are in the cache directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

# waits SECONDS COMMAND...: until the command succeeds.
waits() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.5
    done
}

if docker_answers; then exit 0; fi
if [ -n "${DOCKER_HOST:-}" ] && command -v docker >/dev/null; then
    die "no Docker daemon answers at DOCKER_HOST=$DOCKER_HOST; start it, or unset DOCKER_HOST to use one on this machine"
fi

want=(docker.io)
# Newer Debian has the command in a package of its own.
if ! command -v docker >/dev/null && apt-cache show docker-cli >/dev/null 2>&1; then want+=(docker-cli); fi
if ! command -v docker >/dev/null || ! command -v dockerd >/dev/null; then packages "${want[@]}"; fi
# A package's own script may just have started it.
if waits 3 docker_answers; then exit 0; fi

[ "$(id -u)" = 0 ] || die 'no Docker daemon answers, and only root can start one: systemctl start docker, or dockerd; a user also needs to be in group docker'

if [ -d /run/systemd/system ]; then
    say 'starting docker with systemd'
    if systemctl start docker && waits 60 docker_answers; then exit 0; fi
    say 'systemd could not start it; trying without'
fi

mkdir -p "$AIVORY_CACHE_DIR"
log=$AIVORY_CACHE_DIR/dockerd.log
pidfile=$AIVORY_CACHE_DIR/dockerd.pid

# start OPTION...: starts a daemon and waits for it.
start() {
    say "starting dockerd $*"
    rm -f /var/run/docker.pid
    # Its own session: it must not end with the terminal that started it.
    setsid dockerd "$@" >"$log" 2>&1 </dev/null &
    local pid=$!
    echo "$pid" >"$pidfile"
    gone_or_answers() { docker_answers || ! kill -0 "$pid" 2>/dev/null; }
    waits 60 gone_or_answers || kill "$pid" 2>/dev/null || true
    docker_answers
}

# Runners have no network, so a machine that lets nobody touch its firewall or
# mount overlays still does.
start || start --iptables=false --ip6tables=false --bridge=none ||
    start --iptables=false --ip6tables=false --bridge=none --storage-driver=vfs ||
    { tail -n 5 "$log" >&2; die "cannot start dockerd; log: $log"; }
say "dockerd runs as process $(cat "$pidfile"); log: $log"
