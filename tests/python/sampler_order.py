"""RandomSampler's orders equal PyTorch's. Usage: sampler_order.py PROGRAM (built from sampler_order.cpp)."""

import subprocess
import sys

import torch
from torch.utils.data import DistributedSampler

CASES = [
    (size, seed, epoch)
    for size in (0, 1, 2, 7, 100, 4097, 60000, 100003)
    for seed in (0, 1, 42, 2**31, 2**32 + 5, 2**63 + 11)
    for epoch in (0, 1, 2, 1000)
]


def expected_order(size, seed, epoch):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(size, generator=generator).tolist()
    if size > 0:
        sampler = DistributedSampler(range(size), num_replicas=1, rank=0, seed=seed)
        sampler.set_epoch(epoch)
        assert list(sampler) == order, "PyTorch's two ways disagree"
    return order


def main(program):
    lines = "".join(f"{size} {seed} {epoch}\n" for size, seed, epoch in CASES)
    result = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    orders = [[int(index) for index in line.split()] for line in result.stdout.splitlines()]
    if len(orders) != len(CASES):
        sys.exit(f"got {len(orders)} orders, expected {len(CASES)}")
    for case, order in zip(CASES, orders):
        if order != expected_order(*case):
            sys.exit(f"size, seed, epoch {case}: got {order[:8]}..., expected {expected_order(*case)[:8]}...")
    print(f"{len(CASES)} orders equal PyTorch's")


main(sys.argv[1])
