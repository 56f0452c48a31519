#!/usr/bin/env bash
# Makes the root file system of the service's image.
#
#   sidecar-root.sh DIR [VERSION]
#
# GOOS and GOARCH choose the platform, as for go build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=${1:?names the directory} version=${2:-}
umask 022 # the same modes everywhere
install -d -m 0755 "$root/usr/local/bin" "$root/etc" "$root/var/lib"
install -d -m 0700 "$root/var/lib/aivory-sandbox"
install -d -m 1777 "$root/tmp"
# Root is who owns the engine's socket; 1000 is for who maps it otherwise.
printf 'root:x:0:0:root:/:/sbin/nologin\naivory:x:1000:1000:aivory:/var/lib/aivory-sandbox:/sbin/nologin\n' >"$root/etc/passwd"
printf 'root:x:0:\naivory:x:1000:\n' >"$root/etc/group"
CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w${version:+ -X main.version=$version}" -o "$root/usr/local/bin/aivory-sandbox" ./cmd/aivory-sandbox
