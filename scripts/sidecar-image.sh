#!/usr/bin/env bash
# Builds the service's image without a registry, from this machine's Go.
#
#   sidecar-image.sh [TAG]     default aivory-sandbox-sidecar:latest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

case ${1-} in
    -h | --help) usage; exit 0 ;;
    -*) die "knows no flag $1" ;;
esac
tag=${1:-aivory-sandbox-sidecar:latest}
go_toolchain
scripts/docker.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say "building $tag"
scripts/sidecar-root.sh "$work/root" "$(git describe --tags --always --dirty 2>/dev/null || true)"
# The last stage of the Dockerfile, with the root that is at hand.
awk '/^FROM /{text = ""} {text = text $0 "\n"} END {printf "%s", text}' Dockerfile.sidecar |
    sed 's|^COPY --from=build /out/ /|COPY root/ /|' >"$work/Dockerfile"
docker build -q -t "$tag" "$work" >/dev/null
