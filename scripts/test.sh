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
    setsid bash -ec 'scripts/docker.sh; images/runner/build.sh; make build; scripts/oci.sh; SANDBOX_RUNTIME=runsc scripts/oci.sh; scripts/s3-servers.sh' >"$prepared" 2>&1 &
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
# Two at a time: the tests wait for engines and stores half of the time. Real
# engines on busy machines are late now and then: a test that fails gets a second
# try, alone and when all else is done, and the log shows both.
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
integration=(go test -race -tags integration -count=1 -timeout "${AIVORY_TEST_TIMEOUT:-40m}")
# What takes longest goes first, in two halves.
jobs=('cmd/aivory-sandbox ^Test[A-L]' 'cmd/aivory-sandbox ^Test[M-Z]')
mapfile -t -O 2 jobs < <(grep -rl --include='*_test.go' '^//go:build.*\bintegration\b' internal | xargs -r -n1 dirname | sort -u | sed 's/$/ ./')
running=0
for i in "${!jobs[@]}"; do
    if [ "$running" = 2 ]; then
        wait -n || true
        running=1
    fi
    read -r directory tests <<<"${jobs[$i]}"
    { "${integration[@]}" -run "$tests" "./$directory" >"$results/$i" 2>&1 || : >"$results/$i.failed"; cat "$results/$i"; } &
    running=$((running + 1))
done
wait
for i in "${!jobs[@]}"; do
    [ -e "$results/$i.failed" ] || continue
    read -r directory tests <<<"${jobs[$i]}"
    failed=$(sed -n 's/^--- FAIL: \([A-Za-z0-9_]*\).*/\1/p' "$results/$i" | sort -u | paste -sd '|')
    [ -n "$failed" ] || die "$directory: failed outside of its tests"
    say "$directory: once more, by themselves: $failed"
    "${integration[@]}" -run "^($failed)\$" "./$directory"
done
