"""Our samplers' orders equal PyTorch's. Usage: sampler_order.py PROGRAM (built from sampler_order.cpp)."""

import itertools
import subprocess
import sys

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler


def generator(seed, epoch):
    return torch.Generator().manual_seed((seed + epoch) % 2**64)


def random_order(epoch, size, seed):
    order = torch.randperm(size, generator=generator(seed, epoch)).tolist()
    if size > 0:
        sampler = DistributedSampler(range(size), num_replicas=1, rank=0, seed=seed)
        sampler.set_epoch(epoch)
        assert list(sampler) == order, "PyTorch's two ways disagree"
    return order


def loader_order(epoch, size, seed):
    loader = DataLoader(range(size), shuffle=True, generator=torch.Generator().manual_seed(seed))
    for _ in range(epoch):
        list(loader)
    return [int(batch) for batch in loader]


def replacement_order(epoch, size, seed, samples):
    return list(RandomSampler(range(size), replacement=True, num_samples=samples, generator=generator(seed, epoch)))


def weighted_order(epoch, size, seed, samples, replacement):
    weights = [i % 5 / 2 for i in range(size)]
    return list(WeightedRandomSampler(weights, samples, bool(replacement), generator=generator(seed, epoch)))


def subset_order(epoch, size, seed):
    return list(SubsetRandomSampler([3 * i + 1 for i in range(size)], generator=generator(seed, epoch)))


def distributed_order(epoch, size, seed, rank, ranks, drop_last, shuffle):
    sampler = DistributedSampler(range(size), ranks, rank, bool(shuffle), seed, bool(drop_last))
    sampler.set_epoch(epoch)
    return list(sampler)


ORDERS = {
    "random": random_order,
    "loader": loader_order,
    "replacement": replacement_order,
    "weighted": weighted_order,
    "subset": subset_order,
    "distributed": distributed_order,
}


def cases():
    sizes, seeds = (0, 1, 2, 7, 100, 4097, 60000, 100003), (0, 1, 42, 2**31, 2**32 + 5, 2**63 + 11)
    for epoch, size, seed in itertools.product((0, 1, 2, 1000), sizes, seeds):
        yield "random", epoch, size, seed
    for epoch, size, seed in itertools.product((0, 1, 3), (1, 7, 500), (0, 42)):
        yield "loader", epoch, size, seed
        yield "subset", epoch, size, seed
        for samples in (1, 31, 32, 33, 100):
            yield "replacement", epoch, size, seed, samples
    for epoch, size, seed in itertools.product((0, 3), (7, 500), (0, 42)):
        for samples in (1, 5, 300):
            yield "weighted", epoch, size, seed, samples, 1
        yield "weighted", epoch, size, seed, 5, 0
    for epoch, size, seed in itertools.product((0, 5), (1, 3, 8, 10, 101), (0, 42)):
        for ranks, drop_last, shuffle in itertools.product((1, 2, 3, 8), (0, 1), (0, 1)):
            for rank in range(ranks):
                yield "distributed", epoch, size, seed, rank, ranks, drop_last, shuffle


def main(program):
    todo = list(cases())
    lines = "".join(" ".join(map(str, (epoch, name, *rest))) + "\n" for name, epoch, *rest in todo)
    result = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    orders = [[int(index) for index in line.split()] for line in result.stdout.splitlines()]
    if len(orders) != len(todo):
        sys.exit(f"got {len(orders)} orders, expected {len(todo)}")
    for case, order in zip(todo, orders):
        expected = ORDERS[case[0]](*case[1:])
        if order != expected:
            sys.exit(f"{case}: got {order[:8]}..., expected {expected[:8]}...")
    print(f"{len(todo)} orders equal PyTorch's")


main(sys.argv[1])
