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
# waiting, so it is made ready while the first half runs: runners, then stores.
preparing=''
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$AIVORY_CACHE_DIR"
    prepared=$AIVORY_CACHE_DIR/prepare.log
    export results=$(mktemp -d) # of what follows
    setsid bash -ec 'trap "touch \"$results/ended\"" EXIT; . scripts/lib.sh; packages podman uidmap; scripts/docker.sh; images/runner/build.sh; make build; scripts/oci.sh; for r in crun runsc; do SANDBOX_RUNTIME=$r scripts/oci.sh; done; touch "$results/runners"; scripts/s3-servers.sh; scripts/deploy.sh; touch "$results/all"' >"$prepared" 2>&1 &
    preparing=$!
    trap 'kill -- -"$preparing" 2>/dev/null || true; rm -rf "$results"' EXIT
fi

# ready waits until that much is prepared, and shows what is new in the log
# meanwhile.
shown=0
ready() {
    local lines
    while
        lines=$(wc -l <"$prepared")
        tail -n +$((shown + 1)) "$prepared" | head -n $((lines - shown)) >&2
        shown=$lines
        [ ! -e "$results/$1" ] && [ ! -e "$results/ended" ] && kill -0 "$preparing" 2>/dev/null
    do
        sleep 1
    done
    [ -e "$results/$1" ] || die "cannot prepare the other tests; log: $prepared"
}

scripts/lint.sh
say 'unit tests'
go test -race -timeout 10m ./...

[ -n "$preparing" ] || die 'the unit tests passed; the others need root: they start Docker and look at runners from outside'
say 'what the other tests need: Docker, the runner image'
ready runners

say 'integration tests'
# Two at a time: the tests wait for engines and stores half of the time. Real
# engines on busy machines are late now and then: a test that fails gets a second
# try, alone and when all else is done, and the log shows both.
integration_tests() { # directory tests but-those [NAME=value]...
    local directory=$1 tests=$2 but=$3
    shift 3
    env "$@" go test -race -tags integration -count=1 -timeout "${AIVORY_TEST_TIMEOUT:-40m}" -run "$tests" -skip "$but" "./$directory"
}
job() { # as integration_tests
    local output
    output=$(mktemp "$results/XXXXXX")
    [ $# -le 3 ] || echo "with ${*:4}:" >"$output"
    integration_tests "$@" >>"$output" 2>&1 || echo "$@" >"$output.failed"
    cat "$output"
}
export -f integration_tests job
two_at_a_time() { xargs -L 1 -P 2 bash -c 'job "$@"' job; }

tested=$(grep -rl --include='*_test.go' '^//go:build.*\bintegration\b' internal | xargs -r -n1 dirname | sort -u)
engines='^TestConformance(Runsc|Podman)' # of the tests' own
# The service on other drivers than Docker: what programs in the field do, as far
# as it depends on what they run on, and with long counts all there is.
elsewhere='^Test(ExitCodes|EndsCleanly|NoBleedBetweenRuns|NoSecretReachesARunner|LinearAlgebraAfterFork|OutOfMemory|OutputsThatLie|AClientThatGoesAwayFreesItsSlot|SmallerThings)$'
[ -z "${AIVORY_SOAK:-}" ] || elsewhere=^Test
# Drivers need no store, so that two of them go first; then what takes longest.
{
    echo "internal/runner/docker ^Test $engines"
    echo "internal/runner/docker $engines -"
    ready all
    printf '%s\n' 'cmd/aivory-sandbox ^Test[M-Z] -' 'cmd/aivory-sandbox ^Test[A-L] -'
    grep '^internal/runner/' <<<"$tested" | grep -v /docker | sed 's/$/ . -/'
    for r in runsc runc; do echo "cmd/aivory-sandbox $elsewhere - SANDBOX_DRIVER=oci SANDBOX_RUNTIME=$r"; done
    grep -v '^internal/runner/\|^cmd/' <<<"$tested" | sed 's/$/ . -/'
} | two_at_a_time

for failure in "$results"/*.failed; do
    [ -e "$failure" ] || continue
    read -ra what <"$failure"
    # After a panic, or out of time, nobody knows what else would have failed.
    if grep -qE '^(panic: |fatal error: |testing: race detected outside)' "${failure%.failed}"; then
        say "${what[0]}: once more, whole"
        integration_tests "${what[@]}"
        continue
    fi
    failed=$(sed -n 's/^--- FAIL: \([A-Za-z0-9_]*\).*/\1/p' "${failure%.failed}" | sort -u | paste -sd '|')
    [ -n "$failed" ] || die "${what[0]}: failed outside of its tests"
    say "${what[0]}: once more, by themselves: $failed"
    integration_tests "${what[0]}" "^($failed)\$" "${what[@]:2}"
done
