"""Optimizers and clipping against PyTorch over 50 steps: optimizer_trace.py PROGRAM.

PROGRAM IN OUT KEY=VALUE… runs Bellows' optimizer over recorded weights and gradients. float32 must agree bit by bit
with Python's fused=True, float64 to 1e-12.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["OMP_NUM_THREADS"] = "2"  # the kernels' slices, and so the last bits, depend on it
os.environ["OMP_WAIT_POLICY"] = "passive"  # does not slow down whatever else runs

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

PROGRAM = sys.argv[1]
STEPS = 50
# In order of name, as PROGRAM finds them in the file: a norm of norms depends on it.
SHAPES = {"big": (40001,), "conv.bias": (8,), "conv.weight": (8, 3, 3, 3), "fc.weight": (31, 317), "scale": ()}
CASES = {
    "sgd": ("sgd", {"lr": 0.1}),
    "sgd momentum": ("sgd", {"lr": 0.1, "momentum": 0.9}),
    "sgd nesterov": ("sgd", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "sgd weight decay": ("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}),
    "sgd dampening": ("sgd", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    "sgd maximize": ("sgd", {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-3, "maximize": True}),
    "sgd defaults": ("sgd", {}),
    "adamw": ("adamw", {}),
    "adamw amsgrad": ("adamw", {"lr": 3e-3, "amsgrad": True}),
    "adamw maximize": ("adamw", {"lr": 3e-3, "maximize": True}),
    "adamw without decay": ("adamw", {"lr": 3e-3, "weight_decay": 0.0}),
    "adamw betas": ("adamw", {"lr": 1e-2, "betas": (0.5, 0.75), "eps": 1e-4, "weight_decay": 0.3}),
    "adamw clipped": ("adamw", {"lr": 3e-3, "clip": 1.5}),
    "sgd clipped": ("sgd", {"lr": 3e-3, "momentum": 0.9, "clip": 1.5}),
    "sgd hardly clipped": ("sgd", {"lr": 3e-3, "clip": 400.0}),
}
# Parameters without a gradient in some steps; Python's fused SGD with momentum cannot do that.
PARTIAL = {"adamw partial": ("adamw", {"lr": 3e-3}), "sgd partial": ("sgd", {"lr": 0.1})}


def record(dtype, partial):
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for name, shape in SHAPES.items():
        tensors[f"weight.{name}"] = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    for step in range(STEPS):
        # The joint norm is about 220 * scale: some steps are clipped by the norms above, some are not.
        scale = 10.0 ** torch.empty(()).uniform_(-3.0, 1.0, generator=generator).item()
        for name, shape in SHAPES.items():
            gradient = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
            if not (partial and (step + len(name)) % 3 == 0):
                tensors[f"gradient.{step}.{name}"] = gradient.to(dtype)
    return tensors


def text(value):
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(repr, value)) if isinstance(value, tuple) else repr(value)


def python_trace(recorded, kind, options):
    options = dict(options)
    clip = options.pop("clip", None)
    parameters = {n: torch.nn.Parameter(recorded[f"weight.{n}"].clone()) for n in SHAPES}
    factory = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind]
    optimizer = factory(parameters.values(), fused=True, **options)
    results = {}
    for step in range(STEPS):
        for name, parameter in parameters.items():
            gradient = recorded.get(f"gradient.{step}.{name}")
            parameter.grad = None if gradient is None else gradient.clone()
        if clip is not None:
            results[f"norm.{step}"] = torch.nn.utils.clip_grad_norm_(parameters.values(), clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        if step % 7 == 0:
            for name, parameter in parameters.items():
                results[f"weight.{step}.{name}"] = parameter.detach().clone()
    for name, parameter in parameters.items():
        for field, value in optimizer.state[parameter].items():
            if value is not None:
                results[f"state.{name}.{field}"] = value
    return results


def bellows_trace(folder, kind, options):
    settings = [f"{key}={text(value)}" for key, value in options.items()]
    out = folder / "out.safetensors"
    subprocess.run([PROGRAM, folder / "in.safetensors", out, f"steps={STEPS}", f"name={kind}", *settings], check=True)
    return load_file(out)


def compare(what, python, bellows, dtype):
    assert python.keys() == bellows.keys(), (what, python.keys() ^ bellows.keys())
    for name, expected in python.items():
        got = bellows[name]
        assert got.dtype == expected.dtype and got.shape == expected.shape, (what, name)
        if dtype == torch.float64 and not name.endswith(".step"):
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12, msg=lambda m: f"{what} {name}: {m}")
        else:
            assert torch.equal(got, expected), (what, name, (got - expected).abs().max())


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for dtype in (torch.float32, torch.float64):
            for partial, cases in ((False, CASES), (True, PARTIAL)):
                recorded = record(dtype, partial)
                save_file(recorded, folder / "in.safetensors")
                for what, (kind, options) in cases.items():
                    python = python_trace(recorded, kind, options)
                    compare(f"{what}, {dtype}", python, bellows_trace(folder, kind, options), dtype)
                    norms = [value.item() for key, value in python.items() if key.startswith("norm")]
                    if norms:
                        clipped = sum(norm > options["clip"] for norm in norms)
                        assert 5 < clipped < STEPS - 5, f"{what}: {clipped} of {STEPS} steps are clipped"
                    print(f"{what}, {dtype}: equal")


main()
