"""GradScaler against PyTorch's over 200 steps of two optimizers: grad_scaler_trace.py PROGRAM.

PROGRAM IN OUT KEY=VALUE… trains over recorded weights and gradients, some of which are infinite or NaN. Scale, growth tracker,
which steps were taken and the weights must be equal after every step.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["OMP_NUM_THREADS"] = "2"  # the kernels' slices, and so the last bits, depend on it
os.environ["OMP_WAIT_POLICY"] = "passive"

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

PROGRAM = sys.argv[1]
STEPS = 200
# In order of name, as PROGRAM finds them in the file: sums depend on it.
SHAPES = {"a.bias": (8,), "a.weight": (31, 17), "b.scale": (), "b.weight": (40, 9)}
DEFAULTS = {"init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
CASES = {
    "defaults": {},
    "growth every step": {"init_scale": 1.0, "growth_interval": 1},
    "growth every 3 steps": {"growth_interval": 3},
    "growth every 7 steps, odd factors": {"init_scale": 1000.0, "growth_interval": 7, "growth_factor": 1.7, "backoff_factor": 0.3},
    "growth up to the range's end": {"init_scale": 2.0**120, "growth_interval": 2},
}


def record(seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"weight.{name}": torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    for step in range(STEPS):
        for name, shape in SHAPES.items():
            gradient = torch.randn(shape, generator=generator)
            chance = torch.rand((), generator=generator).item()
            if chance < 0.06:
                value = (float("inf"), float("-inf"), float("nan"))[step % 3]
                gradient.view(-1)[step % max(gradient.numel(), 1)] = value
            tensors[f"gradient.{step}.{name}"] = gradient
    return tensors


def loss(parameters, recorded, step):
    total = None
    for name, weight in parameters.items():
        one = (weight * recorded[f"gradient.{step}.{name}"]).sum()
        total = one if total is None else total + one
    return total


def stepped(scaler, optimizer):
    """scaler.step, and whether the optimizer's own step ran."""
    ran = []
    handle = optimizer.register_step_pre_hook(lambda *_: ran.append(True))
    scaler.step(optimizer)
    handle.remove()
    return float(bool(ran))


def python_trace(recorded, options):
    parameters = {n: torch.nn.Parameter(recorded[f"weight.{n}"].clone()) for n in SHAPES}
    a = {n: p for n, p in parameters.items() if n.startswith("a")}
    b = {n: p for n, p in parameters.items() if n.startswith("b")}
    sgd = torch.optim.SGD(a.values(), lr=0.1, momentum=0.9, fused=True)
    adamw = torch.optim.AdamW(b.values(), lr=1e-2, fused=True)
    for optimizer in (sgd, adamw):
        optimizer._step_supports_amp_scaling = False  # the scaler, not the kernel, unscales and skips
    scaler = torch.amp.GradScaler("cpu", **options)
    results = {"scale": [], "tracker": [], "taken.a": [], "taken.b": []}
    for step in range(STEPS):
        sgd.zero_grad()
        adamw.zero_grad()
        for one in scaler.scale([loss(a, recorded, step), loss(b, recorded, step)]):
            one.backward()
        if step % 2 == 0:
            scaler.unscale_(sgd)
            torch.nn.utils.clip_grad_norm_(a.values(), 0.5, foreach=True)
        results["taken.a"].append(stepped(scaler, sgd))
        results["taken.b"].append(stepped(scaler, adamw) if step % 20 != 17 else 0.0)
        scaler.update(3000.0) if step == 60 else scaler.update()
        state = scaler.state_dict()
        results["scale"].append(state["scale"])
        results["tracker"].append(float(state["_growth_tracker"]))
        for name, weight in parameters.items():
            results[f"weight.{step}.{name}"] = weight.detach().clone()
        if step == 100:
            scaler = torch.amp.GradScaler("cpu")
            scaler.load_state_dict(state)
    return {key: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value for key, value in results.items()}


def bellows_trace(folder, options):
    out = folder / "out.safetensors"
    settings = [f"{key}={value!r}" for key, value in options.items()]
    subprocess.run([PROGRAM, folder / "in.safetensors", out, f"steps={STEPS}", *settings], check=True)
    return load_file(out)


def compare(what, python, bellows):
    assert python.keys() == bellows.keys(), (what, python.keys() ^ bellows.keys())
    for name in sorted(python):
        assert torch.equal(bellows[name], python[name]), (what, name, bellows[name], python[name])


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for seed, (what, own) in enumerate(CASES.items()):
            options = {**DEFAULTS, **own}
            recorded = record(seed)
            save_file(recorded, folder / "in.safetensors")
            python = python_trace(recorded, options)
            compare(what, python, bellows_trace(folder, options))
            skipped = [int(STEPS - python[f"taken.{x}"].sum()) for x in "ab"]
            assert all(10 < count < STEPS - 10 for count in skipped), (what, skipped)
            assert not torch.equal(python["taken.a"], python["taken.b"])
            assert python["weight.199.a.weight"].isfinite().all()
            print(f"{what}: equal; skipped {skipped}, scale {python['scale'].min()} to {python['scale'].max()}")


main()
