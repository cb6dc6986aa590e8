#!/usr/bin/env bash
# demo.sh: the quickstart as a newcomer would type it. Ends with the exit code of the first command that fails.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PWD/.venv/bin:$PATH

# run COMMAND...: shows a command as a terminal would, runs it, stops the demo if it fails
run() {
    local started=$SECONDS code
    printf '\n$ %s\n' "$*"
    "$@"
    code=$?
    if [ "$code" != 0 ]; then
        printf '\ndemo: `%s` ended with exit code %s after %s s\n' "$*" "$code" "$((SECONDS - started))" >&2
        exit "$code"
    fi
}

run orch engine install
run python -m orch.images node job
run orch up examples/quickstart/fleet.yml --yes
run orch run examples/quickstart/train.yml
run orch run examples/quickstart/mpi.yml

cat <<'NEXT'

Two nodes are up and idle. What to try next (with .venv/bin on your PATH):

  orch fleet show laptop                         the nodes, their addresses and state
  orch ps -a                                     the runs so far
  orch logs RUN --node 1                         what rank 1 of a run printed
  orch run examples/quickstart/train.yml --detach    leave it running; orch attach RUN comes back to it
  docker kill $(orch fleet ids laptop -i 0), then: orch drift laptop
                                                 break a node and see it noticed; orch up makes that node anew
  change `nodes: 2` to 3 in examples/quickstart/fleet.yml, then: orch preview examples/quickstart/fleet.yml
  orch down examples/quickstart/fleet.yml --yes  remove the nodes
NEXT
