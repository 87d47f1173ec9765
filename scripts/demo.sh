#!/usr/bin/env bash
# The main job of Highwater, shown on three real nodes: one worker holds a
# lease, another is refused, two leaders and then the whole cluster are killed,
# and tokens only rise.
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

# ask sends one request of METHOD to the path of the resource and sets status,
# body and token. Anything but the status WANTED ends the demonstration.
#   ask WANTED METHOD [QUERY-OR-BODY]
ask() {
  local wanted=$1 method=$2 query="" data=()
  case ${3:-} in
    \?*) query=$3 ;;
    ?*) data=(-d "$3") ;;
  esac
  body=$(curl -sS --max-time 20 -w '\n%{http_code}' -X "$method" ${data[@]+"${data[@]}"} "$at/v1/leases/$resource$query")
  status=${body##*$'\n'}
  body=${body%$'\n'*}
  [ "$status" = "$wanted" ] || fail "$method $at/v1/leases/$resource$query: want $wanted, got $status: $body"
  token=$(number token)
}

# number and text print a member of the answer.
number() { sed -n 's/.*"'"$1"'":\([0-9][0-9]*\).*/\1/p' <<< "$body"; }
text() { sed -n 's/.*"'"$1"'":"\([^"]*\)".*/\1/p' <<< "$body"; }

acquire() {
  say "# $1 acquires $resource"
  ask 201 POST "{\"holder\":\"$1\",\"ttl_ms\":60000}"
  echo "token $token"
  [ "$token" -gt "${last:-0}" ] || fail "token $token is not above ${last:-0}"
  last=$token
  rose+=${rose:+ < }$token
}

refused() {
  say "# $1 asks for it, through another node"
  ask 409 POST "{\"holder\":\"$1\",\"ttl_ms\":60000}"
  [ -z "$token" ] || fail "a refusal has a member token: $body"
  echo "refused, $(text type): $(text holder) holds it with token $(number current_token), $(number remaining_ms) ms left"
}

# still has the holder $1 and the last token.
still() {
  say "# Is the lease of $1 still there?"
  ask 200 GET
  [ "$(text holder) $token" = "$1 $last" ] || fail "it is not: $body"
  echo "yes: $1, token $token, $(number remaining_ms) ms left"
}

renew() {
  say "# $1 renews"
  ask 200 PUT "{\"token\":$last}"
  [ "$token" = "$last" ] || fail "a renewal changed the token: $body"
  echo "token $token, as before"
}

release() {
  say "# $1 releases"
  ask 200 DELETE "?token=$last"
  echo "released"
}

late() {
  say "# $1 wakes up late and renews with token $2"
  ask 410 PUT "{\"token\":$2}"
  echo "refused, $(text type): $(text detail)"
}

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
  say "# the ${1:-}leader dies"
  find_leader
  killed=$leader
  end "$killed"
  echo "ended n$((killed + 1)), the leader, with kill -9"
  survivor
}

bin=${HIGHWATER_BIN:-}
if [ -z "$bin" ]; then
  bin=$dir/highwater
  go build -o "$bin" ./cmd/highwater
fi

say "# three nodes start"
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

last=0 rose=""
at=http://${http[0]}
acquire worker-A
first=$last
at=http://${http[1]}
refused worker-B

kill_leader
still worker-A
renew worker-A
release worker-A
acquire worker-B
late worker-A "$first"

say "# n$((killed + 1)) comes back"
start "$killed"
await_ready "$killed"
echo "n$((killed + 1)) is ready"
kill_leader "next "
still worker-B
release worker-B
acquire worker-A

say "# all die at once, and come back"
for i in 0 1 2; do
  [ -z "${pids[$i]}" ] || kill -9 "${pids[$i]}"
done
for i in 0 1 2; do
  end "$i"
done
echo "ended all nodes with kill -9"
for i in 0 1 2; do
  start "$i"
done
for i in 0 1 2; do
  await_ready "$i"
done
echo "all nodes are ready"
still worker-A
release worker-A
acquire worker-B

say "Tokens rose across two dead leaders and a dead cluster: $rose"
