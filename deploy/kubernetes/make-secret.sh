#!/bin/sh
# Makes the files of the Secret `blockwright-join`: the head's keys, and a join text for workers and one for gateways. Run it once, here;
# the files stay on your machine, in the folder keys.
# usage: ./make-secret.sh [NAMESPACE]
set -eu
cd "$(dirname "$0")"
namespace=${1:-blockwright}
umask 077
blockwright keys new keys
for role in worker gateway; do
  blockwright keys join keys --address "blockwright-head.$namespace.svc:7000" --role "$role" --lasting 365d > "keys/$role.join"
done
