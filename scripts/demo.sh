#!/usr/bin/env bash
# Three nodes, real processes and disks: tokens rise across leaders that are ended with kill -9.
# Needs Go, bash and curl. Exits 0 only if every step went as it says.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
declare -A pid url
cleanup() {
  for n in "${!pid[@]}"; do kill -9 "${pid[$n]}" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

fail() {
  printf '\nFAILED: %s\n' "$*" >&2
  for n in n1 n2 n3; do printf -- '--- the end of the log of %s\n' "$n" >&2; tail -n 15 "$work/$n.log" >&2 || true; done
  exit 1
}
step() { printf '\n# %s\n' "$*"; }

# free prints six ports of the loopback address that nobody listens on.
free() {
  local port=$((20000 + RANDOM % 20000)) found=0
  while [ "$found" -lt 6 ]; do
    port=$((port + 1))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then echo "$port"; found=$((found + 1)); fi
  done
}
mapfile -t port < <(free)

go build -o "$work/highwater" ./cmd/highwater
hw() { "$work/highwater" "$@"; }

members="n1=127.0.0.1:${port[3]},n2=127.0.0.1:${port[4]},n3=127.0.0.1:${port[5]}"
start() { # start NODE INDEX
  "$work/highwater" serve --node-id "$1" --data-dir "$work/$1" \
    --http-addr "127.0.0.1:${port[$2]}" --cluster-addr "127.0.0.1:${port[$2 + 3]}" \
    --initial-cluster "$members" >>"$work/$1.log" 2>&1 </dev/null &
  pid[$1]=$!
  url[$1]="http://127.0.0.1:${port[$2]}"
  echo "started $1, process ${pid[$1]}, ${url[$1]}"
}

alive() { for n in n1 n2 n3; do if kill -0 "${pid[$n]}" 2>/dev/null; then echo "$n"; fi; done; }
endpoints() { local list=""; for n in $(alive); do list+="${list:+,}${url[$n]}"; done; echo "$list"; }

# leader prints the node that a living node names as the leader, if that lives as well.
leader() {
  local n l
  for n in $(alive); do
    l=$(curl -sf --max-time 2 "${url[$n]}/v1/cluster" | sed -n 's/.*"leader":"\([^"]*\)".*/\1/p')
    if [ -n "$l" ] && kill -0 "${pid[$l]}" 2>/dev/null; then echo "$l"; return; fi
  done
}
await() { # await WHAT COMMAND...: until the command prints something, 30 s at most
  local what=$1 out="" end=$((SECONDS + 30)); shift
  while [ -z "$out" ]; do
    [ "$SECONDS" -lt "$end" ] || fail "no $what within 30 s"
    out=$("$@" || true)
    [ -n "$out" ] || read -rt 0.1 <> <(:) || true
  done
  echo "$out"
}
ready() { # ready NODE: prints yes when the node is ready
  if curl -sf --max-time 2 -o "$work/out" "${url[$1]}/readyz"; then echo yes; fi
}
kill_leader() {
  local l; l=$(await leader leader)
  kill -9 "${pid[$l]}"; wait "${pid[$l]}" 2>/dev/null || true
  killed=$l
  echo "ended $l, the leader, with kill -9"
}
acquire() { # acquire HOLDER: prints the token
  hw acquire invoices/B-1042 --holder "$1" --ttl 60s --endpoints "$(endpoints)" 2>>"$work/acquire.err"
}

step "three nodes, each with its own process, disk and ports"
start n1 0; start n2 1; start n3 2
for n in n1 n2 n3; do await "answer from $n" ready "$n" >/dev/null; done
echo "leader: $(await leader leader)"

step "worker-A acquires invoices/B-1042"
first=$(acquire worker-A) || fail "worker-A was refused"
echo "token $first"

step "worker-B is refused while worker-A holds it"
code=0; acquire worker-B >"$work/out" || code=$?
[ "$code" -eq 75 ] || fail "worker-B: exit code $code instead of 75"
[ ! -s "$work/out" ] || fail "worker-B was refused and got a token"
tail -n 1 "$work/acquire.err"

step "the leader dies"
kill_leader

step "the lease is still there, with its token"
held=$(hw get invoices/B-1042 --json --endpoints "$(endpoints)") || fail "the lease is gone"
echo "$held"
[[ "$held" =~ \"token\":\ *$first[,}\ ] ]] || fail "the lease has another token than $first"

step "worker-A releases, worker-B acquires: a larger token"
hw release invoices/B-1042 --token "$first" --endpoints "$(endpoints)" || fail "release was refused"
second=$(acquire worker-B) || fail "worker-B was refused"
echo "token $second"
[ "$second" -gt "$first" ] || fail "token $second is not larger than $first"

step "$killed comes back on its disk, and the next leader dies"
start "$killed" $((${killed#n} - 1))
await "return of $killed" ready "$killed" >/dev/null
kill_leader

step "worker-B releases, worker-C acquires: larger again"
hw release invoices/B-1042 --token "$second" --endpoints "$(endpoints)" || fail "release was refused"
third=$(acquire worker-C) || fail "worker-C was refused"
echo "token $third"
[ "$third" -gt "$second" ] || fail "token $third is not larger than $second"

step "all nodes die at once and come back"
for n in $(alive); do kill -9 "${pid[$n]}"; wait "${pid[$n]}" 2>/dev/null || true; done
start n1 0; start n2 1; start n3 2
for n in n1 n2 n3; do await "return of $n" ready "$n" >/dev/null; done
hw release invoices/B-1042 --token "$third" --endpoints "$(endpoints)" || fail "the lease did not survive"
fourth=$(acquire worker-D) || fail "worker-D was refused"
echo "token $fourth"
[ "$fourth" -gt "$third" ] || fail "token $fourth is not larger than $third"

printf '\nTokens rose across two dead leaders and a dead cluster: %s < %s < %s < %s\n' "$first" "$second" "$third" "$fourth"
