#!/bin/sh
# Installs packages at the tested versions, or says in one line what to do. Usage: install.sh BIN PIP-ARGUMENTS...
# CONSTRAINTS names another file of versions than constraints.txt.
bin=$1
shift
log=$(mktemp)
echo "installing $* (log: $log)" >&2
if ! "$bin/python" -m pip install --quiet --disable-pip-version-check -c "${CONSTRAINTS:-constraints.txt}" "$@" >"$log" 2>&1; then
    if grep -qiE 'connection|resolve|network|timed out|Could not fetch|No matching distribution' "$log"; then
        echo "error: packages could not be downloaded; check the network or the package index, then run make again (log: $log)" >&2
    else
        tail -n 20 "$log" >&2
        echo "error: installation failed; the full log is $log" >&2
    fi
    exit 2
fi
rm -f "$log"
