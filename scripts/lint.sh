#!/usr/bin/env bash
# Format, vet and staticcheck; changes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

go_toolchain
say 'format'
unformatted=$(gofmt -l client cmd internal)
[ -z "$unformatted" ] || die "not formatted, make fmt does it:"$'\n'"$unformatted"
say 'vet'
go vet -tags integration ./...
say 'staticcheck'
go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 -tags integration ./...
