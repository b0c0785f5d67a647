"""B10 in Python. Arguments: save, stall or load; folder; variant."""
import os
import pathlib
import shutil
import statistics
import sys
import time

import torch
from safetensors.torch import load_file, save_file

COUNT, SIZE, ROUNDS = 128, 1 << 20, 5

what, folder, variant = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
parameters = {f"p{i}": torch.nn.Parameter(torch.full((SIZE,), 1.0 + i)) for i in range(COUNT)}
times = []


def timed(body):
    start = time.perf_counter()
    result = body()
    times.append((time.perf_counter() - start) * 1000)
    return result


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def commit(write, name):
    """Written beside, synced, renamed, the folder synced."""
    part = folder / (name + ".part")
    write(part)
    sync(part)
    os.replace(part, folder / name)
    sync(folder)


weights = {name: p.detach() for name, p in parameters.items()}
if what == "load":
    path = folder / "model"
    save_file(weights, path) if variant == "safetensors" else torch.save(weights, path)
    load = {
        "default": lambda: torch.load(path),
        "mmap_clone": lambda: {k: v.clone() for k, v in torch.load(path, mmap=True).items()},
        "safetensors": lambda: {k: v.clone() for k, v in load_file(path).items()},
    }[variant]
    for _ in range(ROUNDS):
        weights = None
        weights = timed(load)
else:
    optimizer = torch.optim.AdamW(list(parameters.values()), fused=True)
    for p in parameters.values():
        p.grad = torch.zeros(SIZE)
    optimizer.step()
    optimizer.zero_grad()
    state = {"model": weights, "optimizer": optimizer.state_dict()}
    tensors = dict(weights)
    for index, entry in optimizer.state_dict()["state"].items():
        for key, value in entry.items():
            tensors[f"{index}.{key}"] = value
    if what == "save":
        write = {
            "torch.save": lambda path: torch.save(state, path),
            "safetensors": lambda path: save_file(tensors, path),
        }[variant]
        for _ in range(ROUNDS):
            timed(lambda: commit(write, "checkpoint"))
            os.remove(folder / "checkpoint")
    elif variant == "async_save":
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        for number in range(ROUNDS + 1):
            timed(lambda: dcp.async_save(state, checkpoint_id=folder / str(number))).result()
            shutil.rmtree(folder / str(number))
        times = times[1:]
        dist.destroy_process_group()
    else:  # the least that Python can do: copies into memory that is there
        copies = {name: value.clone() for name, value in tensors.items()}
        for _ in range(ROUNDS):
            timed(lambda: [copies[name].copy_(value) for name, value in tensors.items()])
digest = sum(value.detach().sum(dtype=torch.double).item() for value in weights.values())
shutil.rmtree(folder)
print(f'{{"value": {statistics.median(times)}, "digest": {digest!r}}}')
