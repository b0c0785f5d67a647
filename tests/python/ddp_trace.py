"""The same data-parallel training in Python on Gloo and in Bellows: same initial weights, same batches, one thread a rank.

Usage: ddp_trace.py TRACE_PROGRAM

Python's ranks are processes, ours are threads. Losses of every rank over 50 steps, and rank 0's weights and buffers, are
equal, bit for bit, in every mode; with three ranks too, where sums depend on their order.
"""

import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from convnet import ConvNet

STEPS, BATCH = 50, 16
CASES = [(2, "sgd", "powersgd"),
         (2, "adamw", "plain"), (2, "sgd", "view"), (2, "sgd", "accumulate"), (2, "adamw", "fp16"),
         (3, "adamw", "plain")]


def make_data(ranks):
    count = STEPS * BATCH * ranks
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(0, 10, (count,), generator=generator)
    # Images that a net can learn: a bright band per class, and noise.
    inputs = torch.randn(count, 1, 28, 28, generator=generator)
    for i, t in enumerate(targets.tolist()):
        inputs[i, 0, 2 * t:2 * t + 3] += 2
    return inputs, targets


def make_ddp(model, mode):
    # Python's PowerSGD begins collectives in the threads that end others: with several buckets on Gloo their order differs
    # from rank to rank. It gets one.
    options = {} if mode in ("plain", "powersgd") else {"bucket_cap_mb": 0.125}
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=mode == "view", **options)
    if mode == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if mode == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return ddp


def train(rank, ranks, name, mode, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    torch.manual_seed(rank)  # rank 0's weights are everyone's
    model = ConvNet().to(memory_format=torch.channels_last)
    ddp = make_ddp(model, mode)
    if name == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, fused=True)
    inputs, targets = make_data(ranks)
    losses = torch.zeros(STEPS, dtype=torch.float64)
    for step in range(STEPS):
        accumulate = mode == "accumulate" and step % 2 == 0
        if mode != "accumulate" or accumulate:
            optimizer.zero_grad(set_to_none=mode != "view")
        part = slice((step * ranks + rank) * BATCH, (step * ranks + rank + 1) * BATCH)
        ddp.require_backward_grad_sync = not accumulate  # what no_sync() sets
        loss = torch.nn.functional.cross_entropy(ddp(inputs[part]), targets[part])
        losses[step] = loss.item()
        loss.backward()
        if not accumulate:
            optimizer.step()
    result = {"losses": losses}
    if rank == 0:
        result |= {f"model.{k}": v.contiguous() for k, v in model.state_dict().items()}
    save_file(result, f"{folder}/python-{rank}.safetensors")
    dist.barrier()
    dist.destroy_process_group()


def bellows(program, ranks, name, mode, folder):
    torch.manual_seed(0)
    inputs, targets = make_data(ranks)
    given = {f"model.{k}": v.contiguous() for k, v in ConvNet().state_dict().items()}
    save_file(given | {"inputs": inputs, "targets": targets}, f"{folder}/in.safetensors")
    subprocess.run([program, f"{folder}/in.safetensors", f"{folder}/out.safetensors", name, mode, str(ranks)], check=True)
    return load_file(f"{folder}/out.safetensors")


def compare(program, ranks, name, mode):
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (ranks, name, mode, folder), nprocs=ranks)
        theirs = [load_file(f"{folder}/python-{rank}.safetensors") for rank in range(ranks)]
        ours = bellows(program, ranks, name, mode, folder)
    losses = torch.stack([part.pop("losses") for part in theirs])
    our_losses = ours.pop("losses")
    assert ours.keys() == theirs[0].keys() and losses.shape == our_losses.shape
    assert losses[:, -5:].mean() < losses[:, 0].mean(), "the net did not learn: the comparison says little"
    loss_gap = (losses - our_losses).abs().max().item()
    gap, where = max(((v.double() - ours[k].double()).abs().max().item(), k) for k, v in theirs[0].items())
    good = loss_gap == 0 and gap == 0
    print(f"{ranks} ranks, {name}, {mode}: loss {losses[:, 0].mean():.4f} -> {losses[:, -5:].mean():.4f}, largest difference of "
          f"losses {loss_gap:.3g}, of weights {gap:.3g} ({where}): {'ok' if good else 'FAILED'}", flush=True)
    return good


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # also of the threads in which Python's hooks go on
    results = [compare(sys.argv[1], *case) for case in CASES]
    sys.exit(0 if all(results) else 1)
