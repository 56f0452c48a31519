#!/bin/bash
# Checks a runner image the way a session uses it: no network, read-only root,
# empty home.
#
#   check.sh [IMAGE [DIRECTORY]]
#
# With a directory, the charts and documents that the checks make are put there.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
image=${1:-aivory-sandbox:latest}
directory=${2:-}

name=aivory-image-check-$$
trap 'docker rm -f "$name" >/dev/null 2>&1 || true' EXIT

# Process 1 is another user's, and neither user may need an entry of its own.
docker run -d --name "$name" --network none --read-only --user 65534:65534 \
    --cap-drop ALL --security-opt no-new-privileges \
    --memory 2g --memory-swap 2g --cpus 1 --pids-limit 256 --ulimit nofile=1024:1024 \
    --tmpfs /tmp:rw,size=256m,mode=1777 \
    --tmpfs /home/sandbox:rw,size=256m,uid=1000,gid=1000 \
    --tmpfs /workspace:rw,size=512m,uid=1000,gid=1000 \
    "$image" sh -c 'while :; do sleep 2147483647 & wait; done' >/dev/null

status=0
docker exec -i --user 1000:1000 "$name" python3 - <"$here/check.py" || status=$?
if [ -n "$directory" ]; then
    mkdir -p "$directory"
    docker exec --user 1000:1000 "$name" tar -C /workspace/outputs -c . | tar -C "$directory" -x --no-same-owner
fi
exit "$status"
