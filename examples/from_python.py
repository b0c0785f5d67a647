"""Trains, lets Bellows go on, and compares with going on here: from_python.py build/release/bin/example_from_python."""
import pathlib
import subprocess
import sys
import tempfile

import torch


def train(model, optimizer, inputs, targets, steps):
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(0)
inputs, targets = torch.randn(64, 8), torch.randn(64, 1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, fused=True)
train(model, optimizer, inputs, targets, 20)

folder = pathlib.Path(tempfile.mkdtemp())
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "inputs": inputs, "targets": targets},
           folder / "begun.pt")
subprocess.run([sys.argv[1], folder / "begun.pt", folder / "done.pt"], check=True)

done = torch.load(folder / "done.pt", weights_only=True)
there = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
there.load_state_dict(done["model"])
and_on = torch.optim.AdamW(there.parameters(), fused=True)
and_on.load_state_dict(done["optimizer"])

train(model, optimizer, inputs, targets, 20)  # what Bellows did
for _ in range(2):
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, there.get_parameter(name)), name
    losses = [train(*run, inputs, targets, 20) for run in ((model, optimizer), (there, and_on))]
    assert losses[0] == losses[1], losses
print("bit-equal, loss", losses[0])
