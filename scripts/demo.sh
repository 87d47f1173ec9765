#!/usr/bin/env bash
# The main job of Highwater, shown on three real nodes: one worker holds a
# lease, another is refused, the leader is killed twice, and tokens only rise.
#
#   scripts/demo.sh            builds ./cmd/highwater and runs the demonstration
#   HIGHWATER_BIN=path scripts/demo.sh    uses a binary that is there already
#
# It needs bash, curl and Go, takes free ports on 127.0.0.1 and a temporary
# directory, ends only its own processes, and exits with 0 only if everything
# that it shows is true.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$(mktemp -d "${TMPDIR:-/tmp}/highwater-demo.XXXXXX")
pids=("" "" "")
http=("" "" "")
cluster=("" "" "")
resource=invoices/B-1042

cleanup() {
  local code=$? i
  for i in 0 1 2; do
    end "$i"
  done
  if [ "$code" -ne 0 ]; then
    echo "demo: FAILED; the last lines of the nodes' logs:" >&2
    tail -n 15 "$dir"/n*.log >&2 || true
  fi
  rm -rf "$dir"
  exit "$code"
}

# end kills node $1 with SIGKILL and waits until it is gone.
end() {
  if [ -n "${pids[$1]}" ]; then
    kill -9 "${pids[$1]}" 2>/dev/null || true
    wait "${pids[$1]}" 2>/dev/null || true
    pids[$1]=""
  fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say() { printf '\n%s\n' "$*"; }
fail() { echo "demo: $*" >&2; exit 1; }

# free_port sets port to one that nothing listens on, below those that the
# system gives to outgoing connections.
declare -A taken
free_port() {
  local try
  for try in {1..100}; do
    port=$((10000 + RANDOM % 20000))
    if [ -z "${taken[$port]:-}" ] && ! (: < "/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      taken[$port]=1
      return
    fi
  done
  fail "no free port found"
}

start() {
  "$bin" serve --node-id "n$(($1 + 1))" --data-dir "$dir/n$(($1 + 1))" \
    --http-addr "${http[$1]}" --cluster-addr "${cluster[$1]}" \
    --initial-cluster "n1=${cluster[0]},n2=${cluster[1]},n3=${cluster[2]}" \
    >> "$dir/n$(($1 + 1)).log" 2>&1 < /dev/null &
  pids[$1]=$!
}

# await_ready waits until node $1 is ready, a minute at most.
await_ready() {
  local deadline=$((SECONDS + 60))
  until curl -fsS -o /dev/null --max-time 5 "http://${http[$1]}/readyz" 2>/dev/null; do
    kill -0 "${pids[$1]}" 2>/dev/null || fail "n$(($1 + 1)) has ended"
    [ "$SECONDS" -lt "$deadline" ] || fail "n$(($1 + 1)) is not ready after a minute"
    sleep 0.1
  done
}

# find_leader sets leader to the number of the node that leads, as a node that
# runs sees it.
find_leader() {
  local deadline=$((SECONDS + 60)) i name
  while [ "$SECONDS" -lt "$deadline" ]; do
    for i in 0 1 2; do
      [ -n "${pids[$i]}" ] || continue
      name=$(curl -fsS --max-time 5 "http://${http[$i]}/v1/cluster" 2>/dev/null |
        sed -n 's/.*"leader":"n\([1-3]\)".*/\1/p') || true
      if [ -n "$name" ] && [ -n "${pids[$((name - 1))]}" ]; then
        leader=$((name - 1))
        return
      fi
    done
    sleep 0.1
  done
  fail "no leader after a minute"
}

# ask shows a request and its answer. It sets status, body and token.
ask() {
  local url=$1
  shift
  local shown="\$ curl -sS" arg
  for arg in "$@"; do
    case $arg in
      *[\ \{\"]*) shown+=" '$arg'" ;;
      *) shown+=" $arg" ;;
    esac
  done
  case $url in
    *\?*) shown+=" '$url'" ;;
    *) shown+=" $url" ;;
  esac
  echo "$shown"
  body=$(curl -sS --max-time 20 -w '\n%{http_code}' "$@" "$url")
  status=${body##*$'\n'}
  body=${body%$'\n'*}
  echo "$body"
  token=$(sed -n 's/.*"token":\([0-9][0-9]*\).*/\1/p' <<< "$body")
}

want() { [ "$status" = "$1" ] || fail "want status $1, not $status"; }
want_token() { [ "$token" = "$1" ] || fail "want token $1, not '$token'"; }

# survivor sets at to the API of a node that runs.
survivor() {
  local i
  for i in 0 1 2; do
    if [ -n "${pids[$i]}" ]; then
      at="http://${http[$i]}"
      return
    fi
  done
}

kill_leader() {
  find_leader
  killed=$leader
  say "# The leader is n$((killed + 1)). kill -9."
  echo "\$ kill -9 ${pids[$killed]}"
  end "$killed"
  survivor
}

bin=${HIGHWATER_BIN:-}
if [ -z "$bin" ]; then
  bin=$dir/highwater
  go build -o "$bin" ./cmd/highwater
fi

say "# Three nodes on this machine:"
for i in 0 1 2; do
  free_port; http[$i]=127.0.0.1:$port
  free_port; cluster[$i]=127.0.0.1:$port
done
for i in 0 1 2; do
  start "$i"
done
for i in 0 1 2; do
  await_ready "$i"
  echo "n$((i + 1)) is ready at http://${http[$i]}"
done
at=http://${http[0]}

say "# worker-A acquires a lease for a minute."
ask "$at/v1/leases/$resource" -X POST -d '{"holder":"worker-A","ttl_ms":60000}'
want 201
first=$token

say "# worker-B asks another node for the same resource, and is refused."
ask "http://${http[1]}/v1/leases/$resource" -X POST -d '{"holder":"worker-B","ttl_ms":60000}'
want 409
[ -z "$token" ] || fail "a refusal has a member token"

kill_leader
say "# worker-A's lease is still there, with its token."
ask "$at/v1/leases/$resource"
want 200
want_token "$first"

say "# worker-A renews it: the token stays. Then it releases."
ask "$at/v1/leases/$resource" -X PUT -d "{\"token\":$first}"
want 200
want_token "$first"
ask "$at/v1/leases/$resource?token=$first" -X DELETE
want 200

say "# worker-B acquires: a larger token."
ask "$at/v1/leases/$resource" -X POST -d '{"holder":"worker-B","ttl_ms":60000}'
want 201
second=$token
[ "$second" -gt "$first" ] || fail "token $second is not above $first"

say "# worker-A wakes up late. What it held is gone for good."
ask "$at/v1/leases/$resource" -X PUT -d "{\"token\":$first}"
want 410

say "# n$((killed + 1)) comes back, and the leader is killed again."
start "$killed"
await_ready "$killed"
kill_leader
ask "$at/v1/leases/$resource"
want 200
want_token "$second"

say "# worker-B releases, worker-A acquires: a larger token again."
ask "$at/v1/leases/$resource?token=$second" -X DELETE
want 200
ask "$at/v1/leases/$resource" -X POST -d '{"holder":"worker-A","ttl_ms":60000}'
want 201
third=$token
[ "$third" -gt "$second" ] || fail "token $third is not above $second"

say "# Two leaders were killed, and tokens only rose: $first < $second < $third"
