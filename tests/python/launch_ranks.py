"""Python ranks under `bellows launch`: python launch_ranks.py PROGRAM.

Started by the test it launches itself, once with a rank 0 that binds MASTER_PORT by itself, as every DDP script does,
and once with one that listens on the descriptor it is given.
"""

import os
import socket
import subprocess
import sys


def is_listening(descriptor: int) -> bool:
    copy = socket.socket(fileno=os.dup(descriptor))
    return copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1 and copy.getsockname()[0] == "127.0.0.1"


def rank(listens: str) -> None:
    import datetime

    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = datetime.timedelta(seconds=60)
    if listens == "on the descriptor":
        descriptor = int(os.environ["BELLOWS_MASTER_FD"]) if rank == 0 else None
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0, limit,
                              master_listen_fd=descriptor)
        if rank == 0 and not is_listening(descriptor):
            sys.exit("the store listens elsewhere")
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    else:
        dist.init_process_group("gloo", timeout=limit)
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    print(f"sum {value.item()} threads {torch.get_num_threads()}")
    dist.destroy_process_group()


def main(program: str) -> None:
    for listens in ("by itself", "on the descriptor"):
        run = subprocess.run(
            [program, "launch", "--nproc-per-node", "2", "--", sys.executable, __file__, "rank", listens],
            capture_output=True, text=True, timeout=240, env=os.environ | {"OMP_NUM_THREADS": "1"})
        lines = sorted(run.stdout.splitlines())
        if run.returncode != 0 or lines != ["[rank 0] sum 3.0 threads 1", "[rank 1] sum 3.0 threads 1"]:
            sys.exit(f"rank 0 listens {listens}: exit code {run.returncode}\n{run.stdout}{run.stderr}")


if __name__ == "__main__":
    rank(sys.argv[2]) if sys.argv[1] == "rank" else main(sys.argv[1])
