#!/usr/bin/env bash
# Format, vet, staticcheck, and the forge's workflows; changes nothing.
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
say 'workflows'
# Without the programs that it would ask where they happen to be installed.
go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 -no-color -shellcheck= -pyflakes= .github/workflows/*.yml
