#!/usr/bin/env bash
# Builds the service and runs it in the foreground, with all that it needs. Takes
# no arguments: the service's configuration is the environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

case ${1-} in
    '') ;;
    -h | --help) usage; exit 0 ;;
    *) die "takes no arguments, and not $1" ;;
esac
export SANDBOX_LISTEN=${SANDBOX_LISTEN:-127.0.0.1:48217}
address=$SANDBOX_LISTEN
case $address in
    :* | 0.0.0.0:* | '[::]':*) address=127.0.0.1:${address##*:} ;;
esac
# Asked before the long work below.
host=${address%:*}
if (exec 3<>"/dev/tcp/${host//[][]/}/${address##*:}") 2>/dev/null; then
    die "something listens on $address already: stop it, or choose another address, such as SANDBOX_LISTEN=127.0.0.1:48218 make run"
fi

go_toolchain
say 'building the service'
make --no-print-directory build
if [ -z "${SANDBOX_DRIVER:-}" ]; then
    SANDBOX_DRIVER=docker
    docker_answers || { SANDBOX_DRIVER=oci; say 'no Docker daemon answers: runners are made without one'; }
fi
export SANDBOX_DRIVER
if [ "$SANDBOX_DRIVER" = oci ]; then
    scripts/oci.sh >&2
else
    scripts/docker.sh
    # Another image than the project's own is the operator's to provide.
    if [ -z "${SANDBOX_IMAGE:-}" ]; then images/runner/build.sh >&2; fi
fi

paste_key='# SANDBOX_API_KEY: as it was given to this service'
if [ -z "${SANDBOX_API_KEY:-}" ]; then
    file=${XDG_CONFIG_HOME:-${HOME:-/root}/.config}/aivory-sandbox/api-key
    if [ ! -s "$file" ]; then
        mkdir -p "${file%/*}"
        (umask 077 && head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$file.new" && mv "$file.new" "$file")
        say "made a key, kept in $file: $(cat "$file")"
    fi
    SANDBOX_API_KEY=$(cat "$file")
    export SANDBOX_API_KEY
    paste_key="export SANDBOX_API_KEY=\$(cat $file)"
fi

# What to paste is printed once the service answers, however long that takes. It is
# no child of the service, which would not wait for it.
greet() {
    until bin/aivory-sandbox healthcheck >/dev/null 2>&1; do
        sleep 0.2
        kill -0 $$ 2>/dev/null || exit 0
    done
    cat <<PASTE

Ready. Stop it with Ctrl-C; sessions live on and are found again by the next start.
Paste this into another terminal for a first call:

export SANDBOX_URL=http://$address
$paste_key
SID=\$(curl -sS -X POST "\$SANDBOX_URL/sessions" -H "Authorization: Bearer \$SANDBOX_API_KEY" | tr -d '{}"' | cut -d: -f2)
curl -sS -X POST "\$SANDBOX_URL/exec" -H "Authorization: Bearer \$SANDBOX_API_KEY" -H 'Content-Type: application/json' -d '{"session_id":"'\$SID'","code":"print(2 + 2)"}'

PASTE
}
(greet >&2 &)
exec bin/aivory-sandbox serve
