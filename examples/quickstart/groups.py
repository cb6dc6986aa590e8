"""A server that hands out numbers, and workers that square them: `groups.yml` gives each a node."""

import os
import sys
import time
from multiprocessing.connection import Client, Connection, Listener

PORT = 7077
NUMBERS = range(1, 11)
# What is received is unpickled: only jobs of this run are believed.
KEY = os.environ["ORCH_RUN_ID"].encode()


def serve(workers: int) -> None:
    with Listener(("0.0.0.0", PORT), authkey=KEY) as listener:
        total = 0
        for share in range(workers):
            with listener.accept() as worker:
                worker.send(list(NUMBERS)[share::workers])
                total += worker.recv()
    expected = sum(number * number for number in NUMBERS)
    print(f"{os.environ['ORCH_GROUP']}: {workers} worker(s) gave {total}, expected {expected}")
    sys.exit(total != expected)


def work() -> None:
    with server() as connection:
        numbers = connection.recv()
        connection.send(sum(number * number for number in numbers))
    print(f"{os.environ['ORCH_GROUP']} {os.environ['ORCH_NODE_RANK']}: squared {numbers}")


def server() -> Connection:
    """The server listens a moment after the barrier, or before it."""
    while True:
        try:
            return Client((os.environ["SERVER"], PORT), authkey=KEY)
        except ConnectionRefusedError:
            time.sleep(0.2)


if __name__ == "__main__":
    serve(int(sys.argv[2])) if sys.argv[1] == "serve" else work()
