#!/usr/bin/env bash
# Train the same spec twice on this machine and compare the records: no server, no cloud. Takes about a minute.
#   bash examples/compare_two_records.sh
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

suite=deployments/suites/local.toml
plumbline spec "$suite" bert-tiny-reviews --out "$work/spec.json" --to "file://$work/store"
for name in one two; do
    plumbline train "$work/spec.json" --data "file://$work/store" --out "$work/$name"
done
plumbline compare "$work/one" "$work/two"
