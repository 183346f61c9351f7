#!/usr/bin/env bash
# A gate in a build: audit a model, keep the report in every form, and fail if a finding is severe or nothing can be said.
#   gate.sh MODEL OUT [options of divulge audit]
# Exits as divulge audit does: 0 met, 5 a finding is at least as severe as FAIL_ON, 6 inconclusive, 2 bad input.
set -uo pipefail
model=$1 out=$2
shift 2
divulge audit "$model" --out "$out" --time "${TIME:-5m}" --fail-on "${FAIL_ON:-high}" --format markdown --format sarif \
  --quiet "$@"
code=$?
if [ -n "${GITHUB_STEP_SUMMARY:-}" ] && [ -f "$out/report.md" ]; then cat "$out/report.md" >> "$GITHUB_STEP_SUMMARY"; fi
exit "$code"
