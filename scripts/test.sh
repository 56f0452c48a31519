#!/usr/bin/env bash
# Runs every check: format, vet, staticcheck, unit tests, then the tests that
# need root, Docker and object stores. Installs and starts what they need.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

go_toolchain
# The race detector wants a C compiler, the agent's own tests a Python.
packages gcc libc6-dev python3 curl
export CGO_ENABLED=1

# What the second half needs takes minutes the first time, most of them spent
# waiting, so it is made ready while the first half runs.
preparing=''
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$AIVORY_CACHE_DIR"
    prepared=$AIVORY_CACHE_DIR/prepare.log
    setsid bash -ec 'scripts/docker.sh; images/runner/build.sh; scripts/s3-servers.sh' >"$prepared" 2>&1 &
    preparing=$!
    trap 'kill -- -"$preparing" 2>/dev/null || true' EXIT
fi

scripts/lint.sh
say 'unit tests'
go test -race -timeout 10m ./...

[ -n "$preparing" ] || die 'the unit tests passed; the others need root: they start Docker and look at runners from outside'
say 'what the other tests need: Docker, the runner image, object stores'
tail -n +1 -f --pid="$preparing" "$prepared" >&2
wait "$preparing" || die "cannot prepare the other tests; log: $prepared"
trap - EXIT

say 'integration tests'
# One package after the other: they share one engine and its cores.
mapfile -t directories < <(grep -rl --include='*_test.go' '^//go:build.*\bintegration\b' cmd internal | xargs -r -n1 dirname | sort -u)
go test -race -tags integration -p 1 -count=1 -timeout "${AIVORY_TEST_TIMEOUT:-40m}" "${directories[@]/#/./}"
