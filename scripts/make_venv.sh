#!/bin/sh
# Creates the virtual environment, or says in one line what is missing. Usage: make_venv.sh PYTHON DIRECTORY
python=$1
venv=$2
if ! command -v "$python" >/dev/null 2>&1; then
    echo "error: $python not found; install Python 3.11 or newer, or name one: make PYTHON=python3.12" >&2
    exit 2
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: $("$python" -V) is too old; Python 3.11 or newer is needed: make PYTHON=python3.12" >&2
    exit 2
fi
if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    rm -rf "$venv"
    echo "error: $python cannot make virtual environments; install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2
    exit 2
fi
