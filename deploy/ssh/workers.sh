#!/bin/sh
# Keeps one worker on each host, over ssh, where the server is not to do that itself (launcher=command).
# usage: workers.sh JOIN_FILE HOST...
# A worker is started again when it ends, unless its text or its command line is refused (exit code 2). When this script is
# ended (SIGTERM, Ctrl-C) the workers are drained. PAUSE: seconds before a restart (5).
set -u
[ $# -ge 2 ] || { echo "usage: workers.sh JOIN_FILE HOST..." >&2; exit 2; }
join=$1
shift
[ -r "$join" ] || { echo "$join cannot be read; name the file of serve --join-file or keys join" >&2; exit 2; }
folder=$(mktemp -d)

# Keeps the worker of one host. On the host it gets the first line, and SIGTERM when the rest of the input ends.
keep() {
  host=$1
  pipe=$folder/$host
  remote="IFS= read -r text; exec 3<&0
printf '%s\n' \"\$text\" | blockwright worker --join - --label host=$host &
worker=\$!
(cat <&3; kill -TERM \$worker) >/dev/null 2>&1 &
wait \$worker"
  trap 'exec 4>&-; wait; exit 0' TERM INT
  while :; do
    mkfifo "$pipe"
    ssh "$host" "$remote" <"$pipe" &
    exec 4>"$pipe"
    rm "$pipe"
    cat "$join" >&4
    wait $!
    code=$?
    exec 4>&-
    echo "the worker on $host ended with $code" >&2
    [ "$code" -ne 2 ] || exit 2
    sleep "${PAUSE:-5}" &
    wait $!
  done
}

pids=
for host; do
  keep "$host" &
  pids="$pids $!"
done
trap 'kill $pids 2>/dev/null' TERM INT
for pid in $pids; do
  while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
done
rm -rf "$folder"
