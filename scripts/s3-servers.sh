#!/usr/bin/env bash
# Builds the S3 servers that tests start, where they are missing: two of them,
# so that no quirk of one is taken for the protocol. They are downloaded as Go
# modules and stay in the cache directory; nothing of them is in the service.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

# server NAME PACKAGE VERSION: internal/storage/s3/s3test finds the program by
# its name and these versions.
server() {
    local name=$1 package=$2 version=$3 dir=$AIVORY_CACHE_DIR/s3-servers
    [ -x "$dir/$name-$version" ] && return
    go_toolchain
    say "building $name $version; this takes some minutes, once"
    mkdir -p "$dir/new"
    GOFLAGS=-buildvcs=false GOBIN=$dir/new go install "$package@$version" >"$dir/$name.log" 2>&1 ||
        { tail -n 15 "$dir/$name.log" >&2; die "cannot build $name; log: $dir/$name.log"; }
    mv "$dir/new/$name" "$dir/$name-$version"
}

server versitygw github.com/versity/versitygw/cmd/versitygw v1.8.0
server minio github.com/minio/minio v0.0.0-20260212201848-7aac2a2c5b7c
