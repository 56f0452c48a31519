#!/usr/bin/env bash
# Makes a release in dist/: archives of the program, images, lists of what is in
# them, and checksums. It needs no Docker and no registry. One commit gives the same
# bytes wherever it is built; of the runner image that holds for one state of
# Debian's mirror.
#
#   release.sh [--service | --runner | --sums] [--out DIR] [VERSION]
#
#   --service   only the program's archives and the service's image, for amd64 and arm64
#   --runner    only the runner image, for this machine's architecture
#   --sums      only the checksums of what is in the directory
#
# VERSION is by default what git describe says. OWNER (hjxwz123) owns the images'
# names. SOURCE_DATE_EPOCH is by default the commit's time.
set -euo pipefail
invoked_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

service=yes runner=yes out='' version=''
while [ $# -gt 0 ]; do
    case $1 in
        --service) runner='' ;;
        --runner) service='' ;;
        --sums) service='' runner='' ;;
        --out) [ $# -ge 2 ] || die '--out wants a directory'; out=$2; shift ;;
        -h | --help) usage; exit 0 ;;
        -*) die "unknown option: $1" ;;
        *) [ -z "$version" ] || die "one version only, not also: $1"; version=$1 ;;
    esac
    shift
done
version=${version:-$(git describe --tags --always --dirty 2>/dev/null || true)}
# It is part of file names and of an image's tag.
[[ $version =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$ ]] || die "not a version: '$version'"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || true)}
[[ $SOURCE_DATE_EPOCH =~ ^[0-9]+$ ]] || die 'this is no git repository: SOURCE_DATE_EPOCH has to be set'
export SOURCE_DATE_EPOCH
owner=${OWNER:-hjxwz123}
[[ $owner =~ ^[a-z0-9]+([._/-][a-z0-9]+)*$ ]] || die "OWNER is no part of an image's name: '$owner'"
revision=$(git rev-parse HEAD 2>/dev/null || true)

# What would make the bytes this machine's.
export LC_ALL=C TZ=UTC GOFLAGS=-buildvcs=false GOAMD64=v1 GOARM64=v8.0 GOEXPERIMENT='' CGO_ENABLED=0
umask 022

if [ -z "$out" ]; then
    out=$PWD/dist
else
    case $out in /*) ;; *) out=$invoked_from/$out ;; esac
fi
mkdir -p "$out"
work=$(mktemp -d "$out/.work-XXXXXX")
trap 'rm -rf "$work"' EXIT
made=$work/made # what is half done never is in the directory
mkdir "$made"
if [ -n "$service$runner" ]; then
    go_toolchain
    go build -o "$work/release" ./internal/tools/release
fi

# archive DIR [OPTION...]: a tar of a directory on standard output.
archive() {
    local dir=$1
    shift
    tar --create --directory="$dir" --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner "$@"
}

# image NAME DOCKERFILE ROOT ARCHITECTURE: the image's archive.
image() {
    "$work/release" image --root "$3" --dockerfile "$2" --platform "linux/$4" --reference "ghcr.io/$owner/$1:$version" \
        --label "org.opencontainers.image.version=$version" ${revision:+--label "org.opencontainers.image.revision=$revision"} \
        --out "$made/$1_${version}_linux_$4.oci.tar"
}

service() {
    local arch=$1 name=aivory-sandbox_${version}_linux_$1 root=$work/root-$1 files=$work/files-$1
    say "service, $arch"
    GOOS=linux GOARCH=$arch scripts/sidecar-root.sh "$root" "$version"
    archive "$root" . >"$work/root-$arch.tar"
    image aivory-sandbox-sidecar Dockerfile.sidecar "$work/root-$arch.tar" "$arch"

    install -d -m 0755 "$files/$name/deploy"
    install -m 0755 "$root/usr/local/bin/aivory-sandbox" "$files/$name/"
    install -m 0644 LICENSE README.md CHANGELOG.md docker-compose.yml "$files/$name/"
    install -m 0644 deploy/* "$files/$name/deploy/"
    archive "$files" "$name" | gzip -n -9 >"$made/$name.tar.gz"
    "$work/release" sbom --program "$root/usr/local/bin/aivory-sandbox" --name aivory-sandbox --version "$version" --out "$made/$name.cdx.json"
}

runner() {
    local arch
    arch=$(dpkg --print-architecture)
    say "runner image, $arch"
    images/runner/build.sh --rootfs "$work/runner.tar" >&2
    image aivory-sandbox Dockerfile.runner "$work/runner.tar" "$arch"
    "$work/release" sbom --root "$work/runner.tar" --name aivory-sandbox-runner --version "$version" --out "$made/aivory-sandbox-runner_${version}_linux_$arch.cdx.json"
    say "only for $arch: the runner image is made of packages that run their scripts, so each architecture is built on a machine of its own, as .github/workflows/release.yml does"
}

if [ -n "$service" ]; then
    service amd64
    service arm64
fi
if [ -n "$runner" ]; then
    command -v dpkg >/dev/null || die 'the runner image needs a Debian machine; --service leaves it out'
    runner
fi
find "$made" -type f -exec mv -f -t "$out" {} +
(cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs -r sha256sum >"$work/sums" && mv "$work/sums" SHA256SUMS)
say "made $out"
cat "$out/SHA256SUMS"
