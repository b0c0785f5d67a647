"""The same training in Python and in Bellows: same initial weights, same batches, same threads.

Usage: trace_convnet.py TRACE_PROGRAM

With fused=True on Python's side 100 steps are bit-equal: losses, weights and buffers. Python's default is another
implementation, whose rounding Adam can turn into a step of full size where a gradient is near zero: there, the losses of
ten steps agree to 1e-6, or on processors where Python's own two differ by more, to just what they do; that ours are those
of Python's fused one, bit for bit, is asserted here too.
"""

import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

from convnet import ConvNet

STEPS, BATCH, THREADS = 100, 32, 2


def make_optimizer(name, parameters, fused):
    if name == "adamw":
        return torch.optim.AdamW(parameters, fused=fused)
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4, fused=fused)


def train(name, fused, steps, inputs, targets):
    torch.manual_seed(0)
    model = ConvNet().to(memory_format=torch.channels_last)
    optimizer = make_optimizer(name, model.parameters(), fused)
    losses = []
    for step in range(steps):
        part = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs[part]), targets[part])
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64), model.state_dict()


def bellows(program, name, steps, inputs, targets, folder):
    torch.manual_seed(0)
    given = {f"model.{k}": v.contiguous() for k, v in ConvNet().state_dict().items()}
    given |= {"inputs": inputs[:steps * BATCH].contiguous(), "targets": targets[:steps * BATCH].contiguous()}
    save_file(given, f"{folder}/in.safetensors")
    subprocess.run([program, f"{folder}/in.safetensors", f"{folder}/out.safetensors", name, str(THREADS)], check=True)
    result = load_file(f"{folder}/out.safetensors")
    return result.pop("losses"), {k.removeprefix("model."): v for k, v in result.items()}


def worst(a, b):
    return max(((x.double() - b[k].double()).abs().max().item(), k) for k, x in a.items())


def main():
    torch.set_num_threads(THREADS)
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(0, 10, (STEPS * BATCH,), generator=generator)
    # Images that a net can learn: a bright band per class, and noise.
    inputs = torch.randn(STEPS * BATCH, 1, 28, 28, generator=generator)
    for i, t in enumerate(targets.tolist()):
        inputs[i, 0, 2 * t:2 * t + 3] += 2
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ("adamw", "sgd"):
            for fused, steps, bound in ((True, STEPS, 0.0), (None, 10, 1e-6)):
                losses, weights = train(name, fused, steps, inputs, targets)
                our_losses, our_weights = bellows(sys.argv[1], name, steps, inputs, targets, folder)
                assert len(losses) == len(our_losses) == steps and weights.keys() == our_weights.keys()
                assert losses[-1] < losses[0] or steps < STEPS, "the net did not learn: the comparison says little"
                loss_gap = (losses - our_losses).abs().max().item()
                fused_losses, fused_weights = (losses, weights) if fused else train(name, True, steps, inputs, targets)
                bound = max(bound, (losses - fused_losses).abs().max().item())
                gap, where = worst(weights, our_weights)
                good = loss_gap <= bound and torch.equal(fused_losses, our_losses) and worst(fused_weights, our_weights)[0] == 0
                failures += not good
                print(f"{name} fused={fused} {steps} steps: loss {losses[0]:.4f} -> {losses[-1]:.4f}, largest difference "
                      f"of losses {loss_gap:.3g} (bound {bound}), of weights {gap:.3g} ({where}): "
                      f"{'ok' if good else 'FAILED'}")
    sys.exit(1 if failures else 0)


main()
