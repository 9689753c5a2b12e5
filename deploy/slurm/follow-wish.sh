#!/bin/sh
# Keeps as many jobs as a server with launcher=wait wishes, by its wish_file. Runs where sbatch can be called.
# usage: follow-wish.sh WISH_FILE JOIN_FILE [options of sbatch]
# The newest job goes first. EVERY: seconds between looks (10); ONCE=1: look once and end.
set -u
[ $# -ge 2 ] || { echo "usage: follow-wish.sh WISH_FILE JOIN_FILE [options of sbatch]" >&2; exit 2; }
wish=$1 join=$2 here=$(dirname "$0") name=blockwright-worker
shift 2
while :; do
  wanted=$(cat "$wish" 2>/dev/null)
  case $wanted in
    '' | *[!0-9]*) echo "$wish holds no number; give the server --set wish_file=$wish" >&2 ;;
    *)
      jobs=$(squeue --me --noheader --name="$name" --states=PENDING,RUNNING,CONFIGURING --sort=-i --format=%i)
      there=$(printf '%s' "$jobs" | grep -c .)
      while [ "$there" -lt "$wanted" ]; do
        sbatch --job-name="$name" "$@" "$here/worker.sbatch" "$join" || break
        there=$((there + 1))
      done
      [ "$there" -le "$wanted" ] || printf '%s\n' "$jobs" | head -n $((there - wanted)) | xargs scancel
      ;;
  esac
  [ -z "${ONCE:-}" ] || exit 0
  sleep "${EVERY:-10}"
done
