#!/bin/bash
# Turns a Debian root file system into the runner's: `setup.sh before` runs first,
# then the packages of packages.txt are installed, then `setup.sh` runs with apt's
# lists still in place. Inside the file system, as root, with the other files of
# this directory beside it; used by Dockerfile.runner and by build.sh alike.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=/usr/lib/aivory-runner
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
# fontconfig would write this time into its cache in place of the directories'.
epoch=${SOURCE_DATE_EPOCH:-}
unset SOURCE_DATE_EPOCH

say() { printf 'setup: %s\n' "$*"; }

if [ "${1:-}" = before ]; then
    install -m 644 "$here/dpkg-trim.conf" /etc/dpkg/dpkg.cfg.d/90-runner-trim
    # Half of the time would go into fsync, and into byte code that is compiled
    # again below. Both are undone at the end.
    echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/00-runner-build
    dpkg-divert --quiet --local --no-rename --divert /usr/bin/py3compile.real --add /usr/bin/py3compile
    ln -sf true /usr/bin/py3compile
    exit
fi

say 'user sandbox'
groupadd --gid 1000 sandbox
# It notes the day.
${epoch:+env SOURCE_DATE_EPOCH="$epoch"} useradd --uid 1000 --gid 1000 --home-dir /home/sandbox --no-create-home --shell /bin/bash sandbox
# Open to all like /tmp: older engines give a tmpfs the mode of the directory it
# covers, with root as the owner, and the program must be able to write there.
install -d -o sandbox -g sandbox -m 1777 /home/sandbox /workspace
ln -sf /usr/share/zoneinfo/Etc/UTC /etc/localtime
echo Etc/UTC >/etc/timezone

say 'wheels'
mkdir -p "$out"
index=${PIP_INDEX_URL:-https://pypi.org/simple}
names=$(sed -n 's/^\([A-Za-z0-9_.-]*\)==.*/\1/p' "$here/requirements.txt" | xargs)
: >"$out/missing"
# Looked at first, because pip tries for minutes.
if python3 - "${index%/}/pip/" <<'PY'
import sys, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=5).close()
except Exception:
    sys.exit(1)
PY
then
    # pip only for the moment: a runner has no network to install from.
    apt-get install -y -qq --no-install-recommends python3-pip
    python3 -m pip install --break-system-packages --root-user-action=ignore --no-cache-dir --no-deps \
        --only-binary :all: --require-hashes --index-url "$index" -r "$here/requirements.txt"
    apt-get purge -y -qq --auto-remove python3-pip
else
    tr ' ' '\n' <<<"$names" >"$out/missing"
fi

say 'fonts'
install -m 644 "$here/files/fonts.conf" /etc/fonts/conf.d/64-aivory-runner.conf
python3 "$here/files/bake_fonts.py" "$out"
# The standard library's sitecustomize.py is a link to this one.
for file in /etc/python3.*/sitecustomize.py; do install -m 644 "$here/files/sitecustomize.py" "$file"; done
# fontconfig trusts its cache while the directories' times match, and ways of
# packing an image round or clamp those: a whole second long past survives.
mkdir -p /usr/local/share/fonts
find /usr/share/fonts /usr/local/share/fonts -type d -exec touch -d 2025-01-01T00:00:00Z {} +
fc-cache -sf

say 'byte code'
rm -f /usr/bin/py3compile /etc/dpkg/dpkg.cfg.d/00-runner-build
dpkg-divert --quiet --local --rename --remove /usr/bin/py3compile
# Test suites of the libraries: a sixth of the image, never imported. Not left
# out by dpkg, since the packages' own scripts fail without them. numpy.testing
# needs one file of numpy's.
find /usr/lib/python3 -depth -type d -name tests ! -path '*/numpy/_core/tests' -exec rm -rf {} +
find /usr/lib/python3/dist-packages/numpy/_core/tests -depth -mindepth 1 ! -name __init__.py ! -name _natype.py -delete
# Not tied to the sources' times, which not every way of unpacking an image
# keeps. An edited module needs `python3 -m compileall` to take effect.
PYTHONDONTWRITEBYTECODE='' python3 -m compileall -q -f -j 0 --invalidation-mode unchecked-hash \
    /usr/lib/python3 /usr/lib/python3.* /usr/local/lib/python3.* || say 'some files cannot be compiled; they are not for this Python'

say 'trimming'
# The packages' own names, whatever mirror the build used.
rm -f /etc/apt/sources.list
cat >/etc/apt/sources.list.d/debian.sources <<'SOURCES'
Types: deb
URIs: http://deb.debian.org/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: trixie-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
# A runner never changes its user.
find / -xdev -type f -perm /6000 -exec chmod a-s {} +
find /var/log -type f -delete
# The base system came before dpkg knew what to leave out.
find /usr/share/doc \( -type f ! -name copyright -o -xtype l \) -delete
find /usr/share/locale -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
rm -rf /usr/share/man/* /usr/share/info/* /usr/share/lintian /var/cache/debconf/*-old /var/lib/dpkg/*-old /root/.cache /var/cache/ldconfig/*
: >/etc/machine-id

if [ -s "$out/missing" ]; then
    say "not installed: $(paste -sd ' ' "$out/missing") (no package index reachable)"
fi
