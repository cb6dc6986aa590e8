"""A token goes around all MPI ranks, then the ranks sum a vector; both results are checked.

It calls Open MPI's C library through ctypes, so no binding has to be compiled into the image. Start it with
mpirun.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time

LENGTH = 1 << 18  # doubles in the vector that is summed: 2 MiB
ROUNDS = 10
TAG = 1

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)


def handle(symbol: str) -> ctypes.c_void_p:
    """Open MPI's predefined objects (MPI_COMM_WORLD, MPI_DOUBLE...) are the addresses of global variables."""
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, symbol)))


WORLD = handle("ompi_mpi_comm_world")
INT = handle("ompi_mpi_int")
DOUBLE = handle("ompi_mpi_double")
SUM = handle("ompi_mpi_op_sum")


def call(name: str, *arguments: object) -> None:
    """Call an MPI function; end all ranks when it fails."""
    code = getattr(mpi, name)(*arguments)
    if code != 0:
        print(f"{name} failed with code {code}", file=sys.stderr, flush=True)
        mpi.MPI_Abort(WORLD, 1)


def ask(name: str) -> int:
    """A number that MPI tells about the world: MPI_Comm_rank, MPI_Comm_size."""
    value = ctypes.c_int()
    call(name, WORLD, ctypes.byref(value))
    return value.value


def ring(rank: int, size: int) -> int:
    """The sum of all ranks: a token starts at 0 on rank 0, each rank adds its number and passes it on."""
    token = ctypes.c_int(0)
    left, right = (rank - 1) % size, (rank + 1) % size
    if rank == 0:
        call("MPI_Send", ctypes.byref(token), 1, INT, right, TAG, WORLD)
    call("MPI_Recv", ctypes.byref(token), 1, INT, left, TAG, WORLD, None)
    if rank != 0:
        token.value += rank
        call("MPI_Send", ctypes.byref(token), 1, INT, right, TAG, WORLD)
    call("MPI_Bcast", ctypes.byref(token), 1, INT, 0, WORLD)
    return token.value


def all_reduce(rank: int) -> tuple[float, float, float]:
    """First and last element of a vector of rank + 1 summed over all ranks, and the speed in MB/s."""
    vector = (ctypes.c_double * LENGTH)(*([rank + 1.0] * LENGTH))
    summed = (ctypes.c_double * LENGTH)()
    started = time.perf_counter()
    for _ in range(ROUNDS):
        call("MPI_Allreduce", vector, summed, LENGTH, DOUBLE, SUM, WORLD)
    seconds = time.perf_counter() - started
    return summed[0], summed[LENGTH - 1], ROUNDS * ctypes.sizeof(vector) / seconds / 1e6


def main() -> int:
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        sys.exit("start me with mpirun, for example: mpirun -np 2 python3 ring.py")
    call("MPI_Init", None, None)
    rank, size = ask("MPI_Comm_rank"), ask("MPI_Comm_size")
    token = ring(rank, size)
    first, last, speed = all_reduce(rank)
    passed = token == size * (size - 1) // 2 and first == last == size * (size + 1) / 2
    print(
        f"rank {rank} of {size} on {socket.gethostname()}: token {token}, sum {last:.0f}, "
        f"all-reduce {speed:.0f} MB/s, {'ok' if passed else 'WRONG'}",
        flush=True,
    )
    if not passed:
        mpi.MPI_Abort(WORLD, 1)
    call("MPI_Finalize")
    return 0


if __name__ == "__main__":
    sys.exit(main())
