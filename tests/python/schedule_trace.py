"""Learning-rate schedules against PyTorch, two parameter groups over 60 steps: schedule_trace.py PROGRAM.

PROGRAM CASES prints the rates and momenta of Bellows' schedules, saved and loaded on the way. They must agree to 1e-11.
"""
import math
import pathlib
import subprocess
import sys
import tempfile
import warnings

import torch
from torch.optim import lr_scheduler as torch_lr
from torch.optim.swa_utils import SWALR

warnings.simplefilter("ignore")  # schedulers without steps of the optimizer
PROGRAM = sys.argv[1]
STEPS = 60


def scheduler(name, **options):
    return options | {"name": name}, lambda optimizer: getattr(torch_lr, name)(optimizer, **options)


def with_length(name, key, **options):
    """Left out, the length is the whole run's."""
    return options | {"name": name}, lambda optimizer: getattr(torch_lr, name)(optimizer, **options, **{key: STEPS})


def special(name, make):
    return {"special": name}, make


def chained(optimizer):
    return torch_lr.ChainedScheduler([torch_lr.ConstantLR(optimizer, factor=0.1, total_iters=20),
                                      torch_lr.ExponentialLR(optimizer, gamma=0.9)])


def long_chain(optimizer):
    return torch_lr.ChainedScheduler([torch_lr.LinearLR(optimizer, start_factor=0.25, total_iters=8),
                                      torch_lr.CosineAnnealingLR(optimizer, T_max=60),
                                      torch_lr.MultiStepLR(optimizer, [30, 40], gamma=0.5)])


def sequential(optimizer):
    return torch_lr.SequentialLR(optimizer, [torch_lr.ConstantLR(optimizer, factor=0.1, total_iters=20),
                                             torch_lr.CosineAnnealingLR(optimizer, T_max=25, eta_min=0.001),
                                             torch_lr.ExponentialLR(optimizer, gamma=0.9)], milestones=[10, 35])


def warmup_cosine(warmup, total, start, end):
    def factor(step):
        if step < warmup:
            return start + (1 - start) * step / warmup
        part = min(1.0, (step - warmup) / (total - warmup))
        return end + (1 - end) * (1 + math.cos(math.pi * part)) / 2
    return lambda optimizer: torch_lr.LambdaLR(optimizer, factor)


CASES = {
    "step": scheduler("StepLR", step_size=7),
    "step gamma": scheduler("StepLR", step_size=10, gamma=0.7),
    "multistep": scheduler("MultiStepLR", milestones=[0, 5, 20, 20, 44], gamma=0.5),
    "constant": scheduler("ConstantLR"),
    "constant options": scheduler("ConstantLR", factor=0.2, total_iters=17),
    "linear": scheduler("LinearLR"),
    "linear options": scheduler("LinearLR", start_factor=0.9, end_factor=0.1, total_iters=40),
    "exponential": scheduler("ExponentialLR", gamma=0.93),
    "polynomial": scheduler("PolynomialLR"),
    "polynomial power": scheduler("PolynomialLR", total_iters=50, power=2.5),
    "cosine": with_length("CosineAnnealingLR", "T_max"),
    "cosine up again": scheduler("CosineAnnealingLR", T_max=13, eta_min=0.004),
    "restarts": scheduler("CosineAnnealingWarmRestarts", T_0=11, eta_min=0.001),
    "longer restarts": scheduler("CosineAnnealingWarmRestarts", T_0=5, T_mult=2),
    "cyclic": scheduler("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=8),
    "cyclic triangular2": scheduler("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=4, step_size_down=9,
                                    mode="triangular2"),
    "cyclic exp_range": scheduler("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=6, mode="exp_range", gamma=0.97,
                                  base_momentum=0.5, max_momentum=0.7),
    "cyclic still": scheduler("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=6, cycle_momentum=False),
    "adam cyclic": scheduler("CyclicLR", base_lr=0.01, max_lr=0.1, step_size_up=8),
    "onecycle": with_length("OneCycleLR", "total_steps", max_lr=0.2),
    "onecycle linear": scheduler("OneCycleLR", max_lr=0.2, total_steps=60, anneal_strategy="linear", pct_start=0.45),
    "onecycle three": scheduler("OneCycleLR", max_lr=0.2, total_steps=60, three_phase=True, div_factor=10.0,
                                final_div_factor=100.0, base_momentum=0.7, max_momentum=0.8),
    "adam onecycle": scheduler("OneCycleLR", max_lr=0.2, total_steps=60),
    "plateau": scheduler("ReduceLROnPlateau", patience=3),
    "plateau cooldown": scheduler("ReduceLROnPlateau", patience=1, cooldown=4, factor=0.5, min_lr=0.003),
    "plateau max": scheduler("ReduceLROnPlateau", mode="max", threshold=0.1, threshold_mode="abs", patience=2,
                             factor=0.9),
    "plateau abs": scheduler("ReduceLROnPlateau", threshold=0.3, threshold_mode="abs", patience=0, factor=0.8),
    "plateau max rel": scheduler("ReduceLROnPlateau", mode="max", threshold=0.2, patience=4, eps=1e-3),
    "warmup cosine": ({"name": "warmup_cosine", "warmup_steps": 9, "start_factor": 0.1, "end_factor": 0.05},
                      warmup_cosine(9, 60, 0.1, 0.05)),
    "warmup cosine short": ({"name": "warmup_cosine", "warmup_steps": 4, "total_steps": 40},
                            warmup_cosine(4, 40, 0.0, 0.0)),
    "lambda": special("lambda", lambda optimizer: torch_lr.LambdaLR(
        optimizer, [lambda step: 0.95**step, lambda step: 1 / (1 + step // 30)])),
    "multiplicative": special("multiplicative", lambda optimizer: torch_lr.MultiplicativeLR(
        optimizer, lambda step: 1 - 0.1 / (step + 1))),
    "chained": special("chained", chained),
    "long chain": special("long_chain", long_chain),
    "sequential": special("sequential", sequential),
    "onecycle groups": special("onecycle_groups", lambda optimizer: torch_lr.OneCycleLR(
        optimizer, max_lr=[0.3, 0.05], epochs=6, steps_per_epoch=10, base_momentum=[0.8, 0.7],
        max_momentum=[0.9, 0.99])),
    "cyclic groups": special("cyclic_groups", lambda optimizer: torch_lr.CyclicLR(
        optimizer, base_lr=[0.01, 0.02], max_lr=[0.1, 0.3], step_size_up=7, step_size_down=5,
        scale_fn=lambda x: 1 / math.sqrt(x))),
    "swa": special("swa", lambda optimizer: SWALR(optimizer, [0.05, 0.001], anneal_epochs=15)),
    "swa linear": special("swa_linear", lambda optimizer: SWALR(optimizer, 0.05, 9, "linear")),
    "swa at once": special("swa_at_once", lambda optimizer: SWALR(optimizer, 0.05, 0)),
}


def metric(step):
    return 10.0 / (step + 1) if step < 12 else 0.8 if step < 30 else abs(math.sin(step)) + 0.5


def python_trace(label, make):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": lr} for lr in (0.1, 0.02)]
    adam = label.startswith("adam")
    optimizer = torch.optim.AdamW(groups) if adam else torch.optim.SGD(groups, momentum=0.9)
    schedule = make(optimizer)
    rows = []
    for step in range(STEPS + 1):
        momenta = [group["betas"][0] if adam else group["momentum"] for group in optimizer.param_groups]
        rows.append([group["lr"] for group in optimizer.param_groups] + momenta)
        if step < STEPS:
            schedule.step(metric(step)) if "plateau" in label else schedule.step()
    return rows


def text(value):
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def main():
    with tempfile.TemporaryDirectory() as folder:
        cases = pathlib.Path(folder) / "cases"
        cases.write_text("".join("\t".join([label, *(f"{key}={text(value)}" for key, value in settings.items())]) + "\n"
                                 for label, (settings, _) in CASES.items()))
        printed = subprocess.run([PROGRAM, cases], check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = {label: [] for label in CASES}
    for line in printed.splitlines():
        label, _, *values = line.split("\t")
        rows[label].append([float(value) for value in values])
    for label, (_, make) in CASES.items():
        expected = python_trace(label, make)
        assert len(rows[label]) == len(expected), label
        assert {tuple(row[:2]) for row in expected} != {(0.1, 0.02)}, f"{label}: the rate never changes"
        if "onecycle" in label:  # after the last step Python's goes past its end, below 0
            assert rows[label][-1] == rows[label][-2], label
            expected.pop(), rows[label].pop()
        for step, (got, wanted) in enumerate(zip(rows[label], expected, strict=True)):
            for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
                assert abs(one - other) <= 1e-11, (label, step, index, one, other)
        print(f"{label}: equal")


main()
