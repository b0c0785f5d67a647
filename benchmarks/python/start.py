"""B1 in Python: from the start of the process to the first training step of an MLP. Argument: fused or default."""
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), fused=sys.argv[1] == "fused" or None)
inputs, targets = torch.randn(32, 784), torch.randint(10, (32,))
loss = torch.nn.functional.cross_entropy(model(inputs), targets)
loss.backward()
optimizer.step()
print(f'{{"value": 0, "digest": {loss.item()!r}}}')
