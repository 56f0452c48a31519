#!/usr/bin/env bash
# Starts the service with the settings of each profile of a case file and replays
# the profile's cases against it.
#
#   replay-cases.sh [--cases DIR] [--profile NAME]... [--through-client] [OPTION]...
#
# DIR holds cases.jsonl and replay.py (default: $AIVORY_CASES, else
# ../shared/cases beside this repository). Without --profile: all of them.
# --through-client puts the Go client between: each request that it can make is
# made with it, and the answer is made of what it returned. It fails where fewer
# than $AIVORY_CLIENT_SHARE percent of the requests went through the client.
# Every OPTION goes to replay.py: --only GROUP, --id REGEX, --slow, -v, ...
# AIVORY_SERVICE names a binary to start instead of building this tree's.
# SANDBOX_DRIVER and SANDBOX_RUNTIME choose what the service runs on; without
# Docker there is no profile nodocker.
set -euo pipefail
invoked_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

cases=${AIVORY_CASES:-../shared/cases} profiles=() options=() through=''
while [ $# -gt 0 ]; do
    case $1 in
        --cases) [ $# -ge 2 ] || die '--cases wants a directory'; cases=$2; shift 2 ;;
        --profile) [ $# -ge 2 ] || die '--profile wants a name'; profiles+=("$2"); shift 2 ;;
        --through-client) through=1; shift ;;
        -h | --help) usage; exit 0 ;;
        *) options+=("$1"); shift ;;
    esac
done
[ -e "$cases/cases.jsonl" ] || cases=$invoked_from/$cases
[ -e "$cases/cases.jsonl" ] || die "no cases.jsonl in $cases"
driver=${SANDBOX_DRIVER:-docker}
if [ ${#profiles[@]} = 0 ]; then
    profiles=(default tiny)
    if [ "$driver" = docker ]; then profiles+=(nodocker); fi
fi

go_toolchain
packages python3
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die 'the replay needs Python 3.11 or later'
if [ -z "${AIVORY_SERVICE:-}" ]; then make --no-print-directory build; fi
service=${AIVORY_SERVICE:-bin/aivory-sandbox}
if [ -n "$through" ]; then go build -o bin/client-front ./internal/clientfront/listen; fi
if [ "$driver" = oci ]; then
    scripts/oci.sh >&2
else
    scripts/docker.sh
    images/runner/build.sh >&2
fi

work=$(mktemp -d)
instance=replay-$$-$RANDOM
pid='' front=''
# end_front: what it printed at its end is in $work/front; its failure is returned.
end_front() {
    local was=$front
    front=''
    [ -z "$was" ] || { kill "$was" 2>/dev/null || true; wait "$was"; }
}
stop() {
    end_front || true
    if [ -n "$pid" ]; then
        kill "$pid" 2>/dev/null || true
        wait "$pid" || true
        pid=''
    fi
    if [ "$driver" = oci ]; then
        remove_runners "$instance"
    else
        docker ps -aq --filter "label=aivory.instance=$instance" | xargs -r docker rm -f >/dev/null
    fi
}
trap 'stop; rm -rf "$work"' EXIT

# settings PROFILE: NAME=value lines, from the first line of the case file.
settings() {
    python3 - "$cases/cases.jsonl" "$1" "$key" "$work/archives" <<'PY'
import json, re, sys
path, profile, key, directory = sys.argv[1:]
text = json.loads(open(path, encoding="utf-8").readline())["meta"]["profiles"][profile]
for word in text.split():
    if re.match(r"[A-Z][A-Z0-9_]*=", word):
        print(word.replace("<KEY>", key).replace("<dir>", directory))
PY
}

passed=0 failed=0
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
# await_port PORT PID: waits until somebody listens there, or the process has ended.
await_port() {
    until (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; do
        kill -0 "$2" 2>/dev/null || return
        sleep 0.2
    done
}

for profile in "${profiles[@]}"; do
    key=$(head -c 16 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
    port=$(free_port)
    mapfile -t env < <(settings "$profile")
    rm -rf "$work/state" "$work/archives"
    log=$work/$profile.log
    say "profile $profile: starting the service"
    env SANDBOX_API_KEY="$key" SANDBOX_LISTEN="127.0.0.1:$port" SANDBOX_INSTANCE="$instance" \
        SANDBOX_STATE_DIR="$work/state" "${env[@]}" "$service" serve >"$log" 2>&1 &
    pid=$!
    await_port "$port" "$pid" || { cat "$log" >&2; die "the service does not start with the settings of profile $profile"; }
    if [ -n "$through" ]; then
        behind=$port port=$(free_port)
        bin/client-front "http://127.0.0.1:$behind" "127.0.0.1:$port" "${AIVORY_CLIENT_SHARE:-75}" >"$work/front" &
        front=$!
        await_port "$port" "$front" || die 'the front does not start'
    fi
    python3 "$cases/replay.py" "http://127.0.0.1:$port" "$key" --cases "$cases/cases.jsonl" --profile "$profile" "${options[@]}" |
        tee "$work/out" || true
    summary=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$work/out" | tail -n 1)
    [ -n "$summary" ] || { tail -n 20 "$log" >&2; die "the replay of profile $profile did not come to its end"; }
    read -r p _ f _ <<<"$summary"
    passed=$((passed + p)) failed=$((failed + f))
    if [ -n "$through" ]; then
        end_front || { cat "$work/front" >&2; die "the client made too few requests of profile $profile"; }
        cat "$work/front"
    fi
    if ! kill -0 "$pid" 2>/dev/null; then
        tail -n 40 "$log" >&2
        die "the service died during profile $profile"
    fi
    if [ "$f" -gt 0 ]; then
        cp "$log" "${TMPDIR:-/tmp}/aivory-replay-$profile.log"
        say "the service's log: ${TMPDIR:-/tmp}/aivory-replay-$profile.log"
    fi
    stop
done
# Not replay.py's own line: that one counts a single profile.
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
