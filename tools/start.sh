#!/bin/sh
# Installs the lab from this folder, without a network, and opens the tour in JupyterLab.
#   ./start.sh                                    the first time it installs, which takes minutes
#   ./start.sh --no-browser --port 8890           options for JupyterLab
#   PYTHON=/path/to/python3.11 ./start.sh         another Python, for the first time
set -eu
cd "$(dirname "$0")"
fail() { echo "could not start the lab: $1" >&2; echo "  fix: $2" >&2; exit 1; }

python=.venv/bin/python
if [ ! -e .venv/.labkit-installed ]; then
    built=$(cat wheels/built-for) # as in: Linux x86_64 3.11
    version=${built##* }
    chosen=${PYTHON:-python$version}
    found=$("$chosen" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) \
        || fail "there is no $chosen" "install Python $version, or: PYTHON=/path/to/python$version ./start.sh"
    [ "$(uname -s) $(uname -m) $found" = "$built" ] \
        || fail "its wheels are for $built, and this is $(uname -s) $(uname -m) $found" \
            "use a bundle that was made on such a machine"
    if command -v sha256sum >/dev/null; then check=sha256sum; else check="shasum -a 256"; fi
    $check --check --status SHA256SUMS \
        || fail "a file is damaged or missing: $($check --check SHA256SUMS 2>/dev/null | grep -m 1 -v ': OK$')" \
            "unpack the bundle again, and check the archive: sha256sum --check …tar.sha256"
    echo "installing the lab into $PWD/.venv, once"
    "$chosen" -m venv .venv || fail "$chosen lacks venv" "on Debian and Ubuntu: apt-get install python$version-venv"
    "$python" -m pip install --quiet --disable-pip-version-check --no-index --find-links wheels \
        --constraint constraints.txt --editable ".[lessons,tensorflow,spark,recipes]" \
        || fail "pip did not install it, see above" "if it's Python's version: PYTHON=/path/to/another ./start.sh"
    touch .venv/.labkit-installed # `make lab` looks for it, too
fi

# As `make lab`: no question about news, tabs of its own, and root only where there is no other user.
export PATH="$PWD/.venv/bin:$PATH" JUPYTER_CONFIG_PATH="$PWD/.jupyter"
JUPYTERLAB_WORKSPACES_DIR="$("$python" -m labkit home)/workspaces"
export JUPYTERLAB_WORKSPACES_DIR
[ "$(id -u)" -ne 0 ] || set -- --allow-root "$@"
exec "$python" -m jupyterlab --Application.log_level=WARN \
    --LabApp.default_url=/lab/tree/notebooks/tour.ipynb "$@"
