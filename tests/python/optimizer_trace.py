"""Optimizers and clipping against PyTorch over 50 steps: optimizer_trace.py PROGRAM.

PROGRAM IN OUT CASES runs Bellows' optimizers over recorded weights and gradients. float32 must agree bit by bit with
Python's fused=True or foreach=True, float64 to 1e-12; LION, LAMB and LARS, which Python lacks, with their papers'
formulas below; LBFGS in float64 alone.
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
LARGE = {"big": (40001,), "conv.bias": (8,), "conv.weight": (8, 3, 3, 3), "fc.weight": (31, 317), "scale": ()}
SMALL = {"conv.bias": (8,), "conv.weight": (8, 3, 3, 3), "fc.weight": (31, 17), "scale": ()}
TINY = {"bias": (3,), "weight": (4, 2)}

LARGE_CASES = [
    ("sgd", {"lr": 0.1}),
    ("sgd", {"lr": 0.1, "momentum": 0.9}),
    ("adamw", {}),
    ("adamw", {"lr": 3e-3, "clip": 1.5}),
    ("sgd", {"lr": 3e-3, "momentum": 0.9, "clip": 1.5}),
    ("sgd", {"lr": 3e-3, "clip": 400.0}),
    ("adam", {"lr": 3e-3, "implementation": "foreach"}),
    ("adagrad", {"lr": 3e-3}),
    ("rmsprop", {"lr": 3e-3, "momentum": 0.5}),
]
WITH_DECAY = {"weight_decay": 0.01}
UP = {"maximize": True}
BETAS = {"betas": (0.5, 0.75), "eps": 1e-4}
ADAM_FLAGS = [{}, {"lr": 3e-3, "amsgrad": True}, {"lr": 3e-3} | UP, WITH_DECAY, WITH_DECAY | UP | {"amsgrad": True},
              {"lr": 1e-2} | BETAS | {"weight_decay": 0.3}]
DECOUPLED = [WITH_DECAY | {"decoupled_weight_decay": True}, WITH_DECAY | {"decoupled_weight_decay": True} | UP]
FLAGS = {
    "sgd": [{}, {"lr": 0.05, "momentum": 0.9, "nesterov": True}, {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
            {"lr": 0.1, "momentum": 0.9, "dampening": 0.3},
            {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3, "maximize": True},
            {"lr": 3e-3, "clip": 3.0, "norm_type": float("inf")}, {"lr": 3e-3, "clip": 40.0, "norm_type": 1.0},
            {"lr": 3e-3, "clip_value": 0.5}],
    "adam": ADAM_FLAGS + DECOUPLED,
    "adamw": ADAM_FLAGS + [{"weight_decay": 0.0}],
    "adagrad": [{}, {"lr_decay": 0.05}, WITH_DECAY, UP, WITH_DECAY | UP,
                {"lr": 0.1, "initial_accumulator_value": 0.3, "eps": 1e-4}],
    "rmsprop": [{}, {"alpha": 0.7, "eps": 1e-4}, WITH_DECAY, UP, WITH_DECAY | UP, {"momentum": 0.9},
                {"momentum": 0.9, "centered": True} | WITH_DECAY | UP, {"centered": True}],
    "adadelta": [{}, {"rho": 0.5, "eps": 1e-3, "lr": 0.3}, WITH_DECAY, UP, WITH_DECAY | UP],
    "adamax": [{}, BETAS, WITH_DECAY, UP, WITH_DECAY | UP],
    "nadam": [{}, BETAS | {"momentum_decay": 0.02}, WITH_DECAY, UP, WITH_DECAY | UP] + DECOUPLED,
    "radam": [{}, BETAS, WITH_DECAY, UP, WITH_DECAY | UP] + DECOUPLED,
    "rprop": [{}, {"lr": 0.1, "etas": (0.4, 1.3), "step_sizes": (1e-3, 0.2)}, UP],
    "asgd": [{}, {"lambd": 0.01, "alpha": 0.5, "t0": 10.0}, WITH_DECAY, UP, WITH_DECAY | UP],
    "adafactor": [{}, {"beta2_decay": -0.5, "d": 2.0, "eps": (1e-6, 1e-2)}, WITH_DECAY, UP, {"lr": 0.5}],
    "muon": [{}, {"nesterov": False}, {"momentum": 0.5, "weight_decay": 0.0, "lr": 0.02},
             {"adjust_lr_fn": "match_rms_adamw"}, {"adjust_lr_fn": "spectral_unclamped", "ns_steps": 3},
             {"ns_coefficients": (3.0, -4.0, 2.0), "eps": 1e-3}],
    "lion": [{}, {"betas": (0.7, 0.8), "lr": 1e-3}, WITH_DECAY, UP, WITH_DECAY | UP],
    "lamb": [{}, BETAS, {"weight_decay": 0.0}, UP],
    "lars": [{}, {"momentum": 0.5, "trust_coefficient": 0.02, "lr": 1.0}, WITH_DECAY, WITH_DECAY | UP],
}
FUSED = {"sgd", "adam", "adamw", "adagrad"}
TORCH = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "rmsprop": "RMSprop", "asgd": "ASGD",
         "adadelta": "Adadelta", "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam", "rprop": "Rprop",
         "adafactor": "Adafactor", "muon": "Muon"}
LBFGS = [{}, {"lr": 4.0, "line_search_fn": "strong_wolfe"}, {"line_search_fn": "strong_wolfe"}, {"max_iter": 4, "history_size": 3, "lr": 0.5},
         {"max_iter": 7, "max_eval": 9, "line_search_fn": "strong_wolfe", "lr": 0.3}, {"max_iter": 3, "lr": 0.1} | UP]


def small_cases():
    for kind, flags in FLAGS.items():
        choices = ["fused", "foreach", "single"] if kind in FUSED else ["foreach", "single"]
        choices = {"muon": ["single"], "adafactor": ["foreach", "auto"]}.get(kind, choices)
        for index, options in enumerate(flags):
            # `single` runs the same code as `foreach`: one set of flags each with and without the others will do.
            for choice in choices if index in (0, 4) else choices[:2]:
                yield kind, options | {"implementation": choice}


# Parameters without a gradient in some steps; Python's fused SGD with momentum cannot do that.
def partial_cases():
    for kind in FLAGS:
        if kind != "muon":
            yield kind, {}
    yield "sgd", {"lr": 0.1, "momentum": 0.9, "implementation": "foreach"}
    yield "rmsprop", {"lr": 0.1, "momentum": 0.9, "implementation": "single"}


def record(shapes, dtype, partial):
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for name, shape in shapes.items():
        tensors[f"weight.{name}"] = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    for step in range(STEPS):
        # Some steps are clipped by the norms above, some are not.
        scale = 10.0 ** torch.empty(()).uniform_(-3.0, 1.0, generator=generator).item()
        for name, shape in shapes.items():
            gradient = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
            if not (partial and (step + len(name)) % 3 == 0):
                tensors[f"gradient.{step}.{name}"] = gradient.to(dtype)
    return tensors


def text(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(repr, value))
    return value if isinstance(value, str) else repr(value)


class Lion:
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        self.lr, self.betas, self.decay = lr, betas, weight_decay

    def step(self, w, g, state):
        m = state.setdefault("exp_avg", torch.zeros_like(w))
        update = torch.sign(self.betas[0] * m + (1 - self.betas[0]) * g)
        w -= self.lr * (update + self.decay * w)
        state["exp_avg"] = self.betas[1] * m + (1 - self.betas[1]) * g


def ratio(numerator, denominator):
    return numerator / denominator if numerator > 0 and denominator > 0 else 1.0


class LAMB:
    """You et al. 2020, algorithm 2."""

    def __init__(self, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=1e-2):
        self.lr, self.betas, self.eps, self.decay = lr, betas, eps, weight_decay

    def step(self, w, g, state):
        t = state["step"] = state.get("step", torch.tensor(0.0)) + 1
        t = t.item()
        for key, value, beta in (("exp_avg", g, self.betas[0]), ("exp_avg_sq", g * g, self.betas[1])):
            state[key] = beta * state.get(key, torch.zeros_like(w)) + (1 - beta) * value
        m = state["exp_avg"] / (1 - self.betas[0] ** t)
        v = state["exp_avg_sq"] / (1 - self.betas[1] ** t)
        update = m / (v.sqrt() + self.eps) + self.decay * w
        w -= self.lr * ratio(w.norm(), update.norm()) * update


class LARS:
    """You, Gitman, Ginsburg 2017, algorithm 1."""

    def __init__(self, lr=1e-3, momentum=0.9, weight_decay=0.0, trust_coefficient=1e-3):
        self.lr, self.momentum, self.decay, self.trust = lr, momentum, weight_decay, trust_coefficient

    def step(self, w, g, state):
        local = self.trust * w.norm() / (g.norm() + self.decay * w.norm()) if w.norm() > 0 and g.norm() > 0 else 1.0
        buffer = state.get("momentum_buffer", torch.zeros_like(w))
        state["momentum_buffer"] = self.momentum * buffer + self.lr * local * (g + self.decay * w)
        w -= state["momentum_buffer"]


class Reference:
    """A paper's formula over parameters, as an optimizer of PyTorch."""

    def __init__(self, parameters, rule, maximize=False):
        self.parameters, self.rule, self.sign = list(parameters), rule, -1 if maximize else 1
        self.state = {parameter: {} for parameter in self.parameters}

    @torch.no_grad()
    def step(self):
        for parameter in self.parameters:
            if parameter.grad is not None:
                self.rule.step(parameter, self.sign * parameter.grad, self.state[parameter])

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None


def make(kind, parameters, options):
    options = dict(options)
    choice = options.pop("implementation", "auto")
    if kind in TORCH:
        if kind in FUSED and choice in ("auto", "fused"):
            options["fused"] = True
        elif kind != "muon":
            options["foreach"] = True
        return getattr(torch.optim, TORCH[kind])(parameters, **options)
    maximize = options.pop("maximize", False)
    return Reference(parameters, {"lion": Lion, "lamb": LAMB, "lars": LARS}[kind](**options), maximize)


def python_trace(recorded, kind, options):
    options = dict(options)
    clip, norm_type = options.pop("clip", None), options.pop("norm_type", 2.0)
    clip_value = options.pop("clip_value", None)
    parameters = parameters_of(recorded, kind)
    optimizer = make(kind, parameters.values(), options)
    results = {}
    for step in range(STEPS):
        for name, parameter in parameters.items():
            gradient = recorded.get(f"gradient.{step}.{name}")
            parameter.grad = None if gradient is None else gradient.clone()
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(parameters.values(), clip, norm_type=norm_type, foreach=True)
            results[f"norm.{step}"] = norm
        if clip_value is not None:
            torch.nn.utils.clip_grad_value_(parameters.values(), clip_value, foreach=True)
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


def parameters_of(recorded, kind):
    names = [name.removeprefix("weight.") for name in sorted(recorded) if name.startswith("weight.")]
    if kind == "muon":
        names = ["fc.weight"]
    return {name: torch.nn.Parameter(recorded[f"weight.{name}"].clone()) for name in names}


def valley(parameters):
    total = 0
    for parameter in parameters:
        x = parameter.reshape(-1)
        value = (x - 1).square().sum() * 0.5
        if x.numel() > 1:
            value = value + (x[1:] - x[:-1].square()).square().sum() * 10
        total = total + value
    return total


def lbfgs_trace(recorded, options):
    parameters = parameters_of(recorded, "lbfgs")
    optimizer = torch.optim.LBFGS(parameters.values(), **options)
    sign = -1 if options.get("maximize") else 1

    def closure():
        optimizer.zero_grad()
        loss = valley(parameters.values()) * sign
        loss.backward()
        return loss

    results = {}
    for step in range(STEPS):
        results[f"loss.{step}"] = optimizer.step(closure).detach().clone()
        if step % 7 == 0:
            for name, parameter in parameters.items():
                results[f"weight.{step}.{name}"] = parameter.detach().clone()
    return results


def bellows_traces(recorded, cases):
    """{case: {tensor: value}} of one run of PROGRAM."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        save_file(recorded, folder / "in.safetensors")
        lines = []
        for number, (kind, options) in enumerate(cases):
            settings = [f"{key}={text(value)}" for key, value in options.items()]
            settings += ["only=fc.weight"] if kind == "muon" else []
            lines.append("\t".join([str(number), f"steps={STEPS}", f"name={kind}", *settings]))
        (folder / "cases").write_text("\n".join(lines) + "\n")
        out = folder / "out.safetensors"
        subprocess.run([PROGRAM, folder / "in.safetensors", out, folder / "cases"], check=True)
        traces = [{} for _ in cases]
        for key, value in load_file(out).items():
            number, key = key.split("/", 1)
            traces[int(number)][key] = value
    return traces


def compare(what, python, bellows, tolerance):
    assert python.keys() == bellows.keys(), (what, python.keys() ^ bellows.keys())
    for name, expected in python.items():
        got = bellows[name]
        assert got.dtype == expected.dtype and got.shape == expected.shape, (what, name)
        if tolerance and not name.endswith(".step"):
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance,
                                       msg=lambda m: f"{what} {name}: {m}")
        else:
            assert torch.equal(got, expected), (what, name, (got - expected).abs().max())


def compare_all(shapes, partial, cases):
    cases = list(cases)
    for dtype in (torch.float32, torch.float64):
        recorded = record(shapes, dtype, partial)
        for (kind, options), bellows in zip(cases, bellows_traces(recorded, cases), strict=True):
            what = f"{kind} {options}{' partial' if partial else ''}, {dtype}"
            python = python_trace(recorded, kind, options)
            rounded = 0.0 if kind in TORCH else 2e-5
            compare(what, python, bellows, 1e-12 if dtype == torch.float64 else rounded)
            norms = [value.item() for key, value in python.items() if key.startswith("norm")]
            if norms:
                clipped = sum(norm > options["clip"] for norm in norms)
                assert 5 < clipped < STEPS - 5, f"{what}: {clipped} of {STEPS} steps are clipped"
        print(f"{len(cases)} cases, {dtype}{', partial' if partial else ''}: equal")


def compare_lbfgs():
    recorded = record(TINY, torch.float64, False)
    cases = [("lbfgs", options) for options in LBFGS]
    for (_, options), bellows in zip(cases, bellows_traces(recorded, cases), strict=True):
        python = lbfgs_trace(recorded, options)
        assert python["loss.0"].abs() > 10, "a start too near to the end"
        compare(f"lbfgs {options}", python, bellows, 1e-12)
    print(f"{len(cases)} cases of LBFGS: equal")


def main():
    compare_all(LARGE, False, LARGE_CASES)
    compare_all(SMALL, False, small_cases())
    compare_all(SMALL, True, partial_cases())
    compare_lbfgs()


main()
