"""B9 in Python. Arguments: adamw or sgd; large or many; default, foreach or fused."""
import statistics
import sys
import time

import torch

DIGEST_STEPS, ROUNDS, STEPS = 10, 7, 20

name, size, variant = sys.argv[1:]
count, elements = (10, 1_000_000) if size == "large" else (600, 16 * 1024)
torch.manual_seed(0)
parameters = [torch.nn.Parameter(torch.randn(elements)) for _ in range(count)]
gradients = [torch.randn(elements) for _ in range(count)]
options = {"fused": {"fused": True}, "foreach": {"foreach": True}, "default": {}}[variant]
if name == "adamw":
    optimizer = torch.optim.AdamW(parameters, **options)
else:
    optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, **options)
foreach = None if variant == "default" else True


def step():
    for p, g in zip(parameters, gradients):
        p.grad = g
    torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach)
    optimizer.step()
    optimizer.zero_grad()


for _ in range(DIGEST_STEPS):
    step()
digest = sum(p.detach().abs().sum(dtype=torch.double).item() for p in parameters)
for _ in range(5):
    step()
times = []
for _ in range(ROUNDS):
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    times.append((time.perf_counter() - start) / STEPS * 1e6)
print(f'{{"value": {statistics.median(times)}, "digest": {digest!r}}}')
