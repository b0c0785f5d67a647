"""`bellows launch` against torchrun: same flags, same environment for each rank, same log files.

Usage: python launch_as_torchrun.py PROGRAM
"""

import importlib.util
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

# Drawn for each job, or different on purpose (docs/launching.md), or torchrun's own files and signals.
DIFFERENT = {"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
             "TORCHELASTIC_SIGNALS_TO_HANDLE", "PYTHONUNBUFFERED", "GLOO_SOCKET_IFNAME"}
CASES = [
    ["--nproc-per-node", "2", "--rdzv-id", "job7", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"],
    ["--nproc_per_node=2", "--role=trainer", "--max-restarts=3", "--rdzv-id", "job7", "--rdzv-backend=c10d",
     "--rdzv-endpoint=localhost:0", "--virtual-local-rank"],
]


NODES = [
    ["--nnodes", "2", "--rdzv-id", "job7", "--max-restarts", "2"],
    ["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-id=job7", "--role=trainer", "--rdzv-conf=last_call_timeout=20"],
]


def started(launcher: list[str], flags: list[str], folder: str, environment: dict[str, str]) -> subprocess.Popen:
    words = [*launcher, *flags, "--no-python", "--log-dir", folder, "--redirects", "3", "env", "-0"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def ranks(launcher: list[str], nodes: list[list[str]], key: str) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Each rank's variables that this process does not have, by the variable `key`, and the files of the log folder."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "4,6"}
    with tempfile.TemporaryDirectory() as folder:
        runs = [started(launcher, flags, folder, environment) for flags in nodes]
        for run in runs:
            output, _ = run.communicate(timeout=240)
            if run.returncode != 0:
                sys.exit(f"{launcher}: exit code {run.returncode}\n{output}")
        found, files = {}, set()
        for path in pathlib.Path(folder).rglob("*.log"):
            job, *rest = path.relative_to(folder).parts
            files.add("/".join([job.split("_")[0], *rest]))
            if path.name == "stdout.log":
                pairs = dict(entry.split("=", 1) for entry in path.read_text().split("\0") if entry)
                name = path.parent.name if key == "folder" else pairs[key]
                found[name] = {name: value for name, value in pairs.items()
                               if environment.get(name) != value and not name.startswith("BELLOWS_")
                               and name not in DIFFERENT}
        return found, files


def compare(program: str, flags: list[list[str]], key: str, count: int) -> None:
    expected = ranks([sys.executable, "-m", "torch.distributed.run"], flags, key)
    got = ranks([program, "launch"], flags, key)
    if len(expected[0]) != count or got != expected:
        sys.exit(f"{flags}:\ntorchrun        {expected}\nbellows launch  {got}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main(program: str) -> None:
    for flags in CASES:
        compare(program, [flags], "folder", 2)
    os.environ.setdefault("LIBTORCH", str(pathlib.Path(importlib.util.find_spec("torch").origin).parent))
    # By node rank each rank has its place; as they come only one node has ranks unlike the other's.
    fixed = [*NODES[0], "--master-addr=127.0.0.1", f"--master-port={free_port()}", "--nproc-per-node=2"]
    compare(program, [[*fixed, "--node-rank=0"], [*fixed, "--node-rank=1"]], "RANK", 4)
    elastic = [*NODES[1], f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--nproc-per-node=2"]
    compare(program, [elastic, elastic], "RANK", 4)


if __name__ == "__main__":
    main(sys.argv[1])
