#!/bin/sh
# Installs packages at the tested versions, or says in one line what to do. Usage: install.sh BIN PIP-ARGUMENTS...
# CONSTRAINTS names another file of versions than constraints.txt. On a terminal the line last written by pip is shown.
bin=$1
shift
log=$(mktemp)
echo "installing $* (log: $log)" >&2
"$bin/python" -m pip install --progress-bar off --disable-pip-version-check -c "${CONSTRAINTS:-constraints.txt}" "$@" \
    >"$log" 2>&1 &
pip=$!
trap 'kill $pip 2>/dev/null' INT TERM
seconds=0
while [ -t 2 ] && kill -0 $pip 2>/dev/null; do
    printf '\r\033[K%4d s  %.90s' "$seconds" "$(tail -n 1 "$log" | tr -d '\r')" >&2
    seconds=$((seconds + 1))
    sleep 1
done
[ ! -t 2 ] || printf '\r\033[K' >&2
if ! wait $pip; then
    if grep -qiE 'connection|resolve|network|timed out|Could not fetch|No matching distribution' "$log"; then
        echo "error: packages could not be downloaded; check the network or the package index, then run make again (log: $log)" >&2
    else
        tail -n 20 "$log" >&2
        echo "error: installation failed; the full log is $log" >&2
    fi
    exit 2
fi
rm -f "$log"
