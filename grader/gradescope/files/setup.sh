#!/usr/bin/env bash
# Run once, when Gradescope builds the image: makes the environment that `run_autograder` uses without a network.
set -euo pipefail
root="${GRADE_AUTOGRADER_ROOT:-/autograder}"
source="$root/source"
venv="${GRADE_VENV:-$root/venv}"

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
find_python() {
    for name in python3.13 python3.12 python3.11 python3; do
        if command -v "$name" >/dev/null && "$name" -c "$new_enough"; then command -v "$name"; return; fi
    done
    return 1
}

if ! python="$(find_python)" || ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install -y --no-install-recommends python3 python3-venv
    python="$(find_python)" || { echo "Python 3.11 or newer is needed: choose a newer base image (Ubuntu 24.04)." >&2; exit 1; }
fi
"$python" -m venv "$venv"
if [ -d "$source/wheels" ]; then
    "$venv/bin/python" -m pip install --no-index --find-links "$source/wheels" -c "$source/course/constraints.txt" -r "$source/requirements.txt"
else
    "$venv/bin/python" -m pip install -c "$source/course/constraints.txt" -r "$source/requirements.txt"
fi
# Workers run as users of their own and need the environment, not what it was installed from.
chmod -R go+rX "$venv"
chmod -R go-rwx "$source"
