#!/usr/bin/env bash
# Makes ready what runners without Docker need: an OCI runtime, and the runner
# image, unpacked. SANDBOX_RUNTIME chooses the runtime (default runc).
# SANDBOX_IMAGE_DIR is where images are kept, by default in the cache directory.
# Does nothing where all is there. A user without root gets an image of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

[ "$(id -u)" = 0 ] || packages uidmap
case ${SANDBOX_RUNTIME:-runc} in
    runc | crun) packages "${SANDBOX_RUNTIME:-runc}" ;;
    # Debian 12's own is of 2022.
    runsc) trixie_package runsc ;;
esac
# Another image than the project's own is the operator's to provide.
[ -z "${SANDBOX_IMAGE:-}" ] || exit 0

tar=$(images/runner/build.sh --print-rootfs)
if [ -e "$tar.digest" ] && bin/aivory-sandbox image list | grep -qF "aivory-sandbox:latest  $(cat "$tar.digest")"; then exit 0; fi
say 'unpacking the runner image'
bin/aivory-sandbox image import "$tar" aivory-sandbox:latest >"$tar.digest.new"
mv "$tar.digest.new" "$tar.digest"
