"""B2 and B13 in Python, under torchrun. Arguments: start, convnet or resnet18; variant: default or bucket_view."""
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/python"))
from convnet import ConvNet  # noqa: E402

DIGEST_STEPS, ROUNDS, STEPS = 3, 5, 6

what, variant = sys.argv[1], sys.argv[2]
dist.init_process_group("gloo")
rank = dist.get_rank()


def show(value, digest):
    if rank == 0:
        print(f'{{"value": {value}, "digest": {digest!r}}}', flush=True)


def train():
    torch.manual_seed(0)
    if what == "resnet18":
        import torchvision

        model = torchvision.models.resnet18(num_classes=10)
    else:
        model = ConvNet().to(memory_format=torch.channels_last)
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=variant == "bucket_view")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    torch.manual_seed(1 + rank)
    inputs = torch.randn(16, 3, 32, 32) if what == "resnet18" else torch.randn(16, 1, 28, 28)
    targets = torch.randint(10, (16,))

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(DIGEST_STEPS):
        loss = step()
    digest = loss.detach().clone()
    dist.all_reduce(digest)
    step(), step()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        times.append((time.perf_counter() - begin) / STEPS * 1e6)
    show(statistics.median(times), digest.item())


if what == "start":
    total = torch.full((1,), rank + 1.0)
    dist.all_reduce(total)
    show(0, total.item())
else:
    train()
dist.barrier()
dist.destroy_process_group()
