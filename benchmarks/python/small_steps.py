"""B7 in Python. Arguments: mlp, then default, fused or compiled."""
import statistics
import sys
import time

import torch

DIGEST_STEPS, ROUNDS, STEPS = 100, 9, 500

variant = sys.argv[2]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), fused=variant != "default" or None)
inputs, targets = torch.randn(32, 784), torch.randint(10, (32,))
compute = torch.nn.functional.cross_entropy
run = torch.compile(lambda x, y: compute(model(x), y)) if variant == "compiled" else lambda x, y: compute(model(x), y)


def step():
    optimizer.zero_grad()
    loss = run(inputs, targets)
    loss.backward()
    optimizer.step()
    return loss


for _ in range(DIGEST_STEPS):
    loss = step()
digest = loss.item()
for _ in range(50):
    step()
times = []
for _ in range(ROUNDS):
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    times.append((time.perf_counter() - start) / STEPS * 1e6)
print(f'{{"value": {statistics.median(times)}, "digest": {digest!r}}}')
