#!/usr/bin/env bash
# Write the lock files: `make lock` runs this, and passes its arguments on to pip-compile (--upgrade-package NAME).
#   locks/all.txt           development, tests and the local stack; without hashes: torch is a CPU or a CUDA build of one version
#   locks/trainer.txt       what a trainer needs at these versions; without hashes, for the same reason
#   locks/trainer-cuda.txt  a trainer on Linux x86-64 with an NVIDIA GPU: every wheel, CUDA's too, with its hashes
#   locks/controller.txt    a controller, with hashes
# What is pinned stays pinned, unless an argument asks for it: bash infra/lock.sh --upgrade-package NAME
# With `--check`, nothing is written, and the script fails if one of the smaller files is not what locks/all.txt makes it.
set -euo pipefail
cd "$(dirname "$0")/.."

pip_compile=${PIP_COMPILE:-.venv/bin/pip-compile}
unset PIP_COMPILE  # pip would read it as its own option --compile
uv=$(realpath "${UV:-.venv/bin/uv}")
python=${PYTHON:-.venv/bin/python}
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

# Before pip 24.0, a package with an extra is a package of its own, which needs a pin and hashes of its own: put the pin
# without the extra before each pin with one.
with_plain_pins() {
    awk '
        function flush(plain) {
            plain = block
            if (sub(/\[[^]]*\]/, "", plain) && plain != before) printf "%s", plain
            printf "%s", block
            before = block; block = ""
        }
        /^[a-z0-9]/ { flush() }
        { block = block $0 "\n" }
        END { flush() }
    ' "$1"
}

# Resolve one extra for all Pythons and the systems given, with hashes. uv reads the systems from the project that it is
# called in, and from nowhere else. It keeps the versions of the output file, which CUDA's packages have from there alone.
hashed() {
    local extra=$1 systems=$2 name=$3 out=$4
    cp "locks/$name.txt" "$out"
    mkdir -p "$work/project"
    { sed '/^\[project\.scripts\]/,$d' pyproject.toml; echo "[tool.uv]"; echo "environments = [$systems]"; } > "$work/project/pyproject.toml"
    (
        locks=$PWD/locks
        cd "$work/project"
        "$uv" pip compile --quiet --universal --python-version 3.11 --no-strip-extras --generate-hashes --no-header --no-annotate \
            --no-emit-index-url ${upgrades[@]+"${upgrades[@]}"} --extra "$extra" --constraint "$locks/all.txt" --output-file "$out" pyproject.toml
    )
}

# Replace the file, or compare with it; of hashes, new ones come to the index with every wheel of a release.
settle() {
    local name=$1 made=$2 pins='/^[a-z#]/!d; s/ *\\$//'
    if [ "${check:-}" ]; then
        diff -u <(sed "$pins" "locks/$name.txt") <(sed "$pins" "$made") || {
            echo "locks/$name.txt is not what locks/all.txt makes it: run make lock" >&2
            exit 1
        }
    else
        mv "$made" "locks/$name.txt"
    fi
}

upgrades=()
if [ "${1:-}" = "--check" ]; then
    check=1
else
    upgrades=("$@")
    cp locks/all.txt "$work/all.txt"
    "$pip_compile" "${flags[@]}" --all-extras "$@" --output-file "$work/all.txt" pyproject.toml
    {
        echo "# What development, the tests and the local stack need; written by infra/lock.sh."
        portable "$work/all.txt"
        other_pythons
    } > "$work/all.final"
    mv "$work/all.final" locks/all.txt
fi

"$pip_compile" "${flags[@]}" --extra trainer --constraint locks/all.txt --output-file "$work/trainer.txt" pyproject.toml
{
    echo "# What a trainer needs, at the versions of locks/all.txt; written by infra/lock.sh."
    portable "$work/trainer.txt" | sed -E '/^ +#   -c locks\/all\.txt$/d'
} > "$work/trainer.final"
settle trainer "$work/trainer.final"

hashed controller "\"sys_platform == 'linux'\", \"sys_platform == 'darwin'\"" controller "$work/controller.txt"
{
    echo "# What a controller needs, at the versions of locks/all.txt; written by infra/lock.sh."
    with_plain_pins "$work/controller.txt"
} > "$work/controller.final"
settle controller "$work/controller.final"

hashed trainer "\"sys_platform == 'linux' and platform_machine == 'x86_64'\"" trainer-cuda "$work/cuda.txt"
cuda=$(sed -nE 's/^nvidia-cuda-runtime(-cu[0-9]+)?==([0-9.]+).*/\2/p' "$work/cuda.txt")
driver=$("$python" -c 'import sys; from plumbline.night.doctor.place import least_driver; print(least_driver(sys.argv[1]))' "$cuda")
{
    echo "# A trainer on Linux x86-64 with an NVIDIA GPU, at the versions of locks/all.txt; written by infra/lock.sh."
    echo "# CUDA $cuda needs the NVIDIA driver $driver or newer; \`plumbline doctor SUITE --workers\` checks it."
    with_plain_pins "$work/cuda.txt"
} > "$work/cuda.final"
settle trainer-cuda "$work/cuda.final"
