#!/usr/bin/env bash
# Write the lock files anew: locks/all.txt for development and the local stack, and from it, version by version, what
# a controller and a trainer need. `make lock` runs this. With `--check`, nothing is written, and it fails if one of the
# two smaller files is not what locks/all.txt makes it.
set -euo pipefail
cd "$(dirname "$0")/.."

pip_compile=${PIP_COMPILE:-.venv/bin/pip-compile}
flags=(--quiet --strip-extras --allow-unsafe --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A machine with a local CPU build of torch names it `2.13.0+cpu`; elsewhere that version does not exist.
portable() { sed -E 's/^(torch==[0-9.]+)\+[a-z0-9]+/\1/; /^# What other Pythons need/,$d' "$1"; }

# pip-compile asks only for what the Python needs that it runs on.
other_pythons() {
    cat <<'END'
# What other Pythons need as well.
async-timeout==5.0.1 ; python_full_version < "3.11.3"
    # via redis
whenever==0.10.5 ; python_version >= "3.13"
    # via prefect
END
}

if [ "${1:-}" != "--check" ]; then
    # What is pinned stays pinned, unless it is asked for: infra/lock.sh --upgrade-package NAME
    cp locks/all.txt "$work/all.txt"
    "$pip_compile" "${flags[@]}" --all-extras "$@" --output-file "$work/all.txt" pyproject.toml
    {
        echo "# What development, the tests and the local stack need; written by infra/lock.sh."
        portable "$work/all.txt"
        other_pythons
    } > "$work/all.final"
    mv "$work/all.final" locks/all.txt
fi
for extra in trainer controller; do
    "$pip_compile" "${flags[@]}" --extra "$extra" --constraint locks/all.txt --output-file "$work/$extra.txt" pyproject.toml
    {
        echo "# What a $extra needs, at the versions of locks/all.txt; written by infra/lock.sh."
        portable "$work/$extra.txt" | sed -E '/^ +#   -c locks\/all\.txt$/d'
        if [ "$extra" = controller ]; then other_pythons; fi
    } > "$work/$extra.final"
    if [ "${1:-}" = "--check" ]; then
        diff -u "locks/$extra.txt" "$work/$extra.final" || { echo "locks/$extra.txt is not what locks/all.txt makes it: run make lock" >&2; exit 1; }
    else
        mv "$work/$extra.final" "locks/$extra.txt"
    fi
done
