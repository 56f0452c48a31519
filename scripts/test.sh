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

scripts/lint.sh
say 'unit tests'
go test -race -timeout 10m ./...

[ "$(id -u)" = 0 ] || die 'the unit tests passed; the others need root: they start Docker and look at runners from outside'
say 'what the other tests need: Docker, the runner image, object stores'
scripts/docker.sh
images/runner/build.sh >&2
if [ -x scripts/s3-servers.sh ]; then scripts/s3-servers.sh >&2; fi

say 'integration tests'
# One package after the other: they share one engine and its cores.
mapfile -t directories < <(grep -rl --include='*_test.go' '^//go:build.*\bintegration\b' cmd internal | xargs -r -n1 dirname | sort -u)
go test -race -tags integration -p 1 -count=1 -timeout "${AIVORY_TEST_TIMEOUT:-20m}" "${directories[@]/#/./}"
