"""`bellows launch` against torchrun: same flags, same environment for each rank, same log files.

Usage: python launch_as_torchrun.py PROGRAM
"""

import os
import pathlib
import subprocess
import sys
import tempfile

# Drawn for each job, or different on purpose (docs/launching.md), or torchrun's own files and signals.
DIFFERENT = {"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
             "TORCHELASTIC_SIGNALS_TO_HANDLE", "PYTHONUNBUFFERED"}
CASES = [
    ["--nproc-per-node", "2", "--rdzv-id", "job7", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"],
    ["--nproc_per_node=2", "--role=trainer", "--max-restarts=3", "--rdzv-id", "job7", "--rdzv-backend=c10d",
     "--rdzv-endpoint=localhost:0", "--virtual-local-rank"],
]


def ranks(launcher: list[str], flags: list[str]) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Each rank's variables that this process does not have, and the files of the log folder."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "4,6"}
        run = subprocess.run([*launcher, *flags, "--no-python", "--log-dir", folder, "--redirects", "3", "env", "-0"],
                             capture_output=True, text=True, timeout=240, env=environment)
        if run.returncode != 0:
            sys.exit(f"{launcher}: exit code {run.returncode}\n{run.stdout}{run.stderr}")
        found, files = {}, set()
        for path in pathlib.Path(folder).rglob("*.log"):
            job, *rest = path.relative_to(folder).parts
            files.add("/".join([job.split("_")[0], *rest]))
            if path.name == "stdout.log":
                pairs = dict(entry.split("=", 1) for entry in path.read_text().split("\0") if entry)
                found[path.parent.name] = {name: value for name, value in pairs.items()
                                           if environment.get(name) != value and not name.startswith("BELLOWS_")
                                           and name not in DIFFERENT}
        return found, files


def main(program: str) -> None:
    for flags in CASES:
        expected = ranks([sys.executable, "-m", "torch.distributed.run"], flags)
        got = ranks([program, "launch"], flags)
        if len(expected[0]) != 2 or got != expected:
            sys.exit(f"{flags}:\ntorchrun        {expected}\nbellows launch  {got}")


if __name__ == "__main__":
    main(sys.argv[1])
