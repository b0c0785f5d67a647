"""B12 in Python: torch.utils.checkpoint without reentrant autograd. Argument: fused or default."""
import statistics
import sys
import time

import torch
from torch.utils.checkpoint import checkpoint

LAYERS, WIDTH, BATCH, SEGMENTS = 64, 512, 256, 8
DIGEST_STEPS, ROUNDS, STEPS = 5, 5, 2

torch.manual_seed(0)
layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
optimizer = torch.optim.SGD(layers.parameters(), lr=1e-2, fused=sys.argv[1] == "fused" or None)
inputs, targets = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)


def segment(start, end):
    def run(x):
        for index in range(start, end):
            x = layers[index](torch.relu(x) if index > 0 else x)
        return x
    return run


def step():
    optimizer.zero_grad()
    x = inputs
    for i in range(SEGMENTS):
        x = checkpoint(segment(i * LAYERS // SEGMENTS, (i + 1) * LAYERS // SEGMENTS), x, use_reentrant=False)
    loss = torch.nn.functional.mse_loss(x, targets)
    loss.backward()
    optimizer.step()
    return loss


for _ in range(DIGEST_STEPS):
    loss = step()
digest = loss.item()
del loss
step()
times = []
for _ in range(ROUNDS):
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    times.append((time.perf_counter() - start) / STEPS * 1e3)
print(f'{{"value": {statistics.median(times)}, "digest": {digest!r}}}')
