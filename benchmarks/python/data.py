"""B3 to B6 in Python. Arguments as bench_data's without the workers, then a variant: dataloaderN (N workers, sample by
sample), batchedN (DataLoader that asks for whole batches), vectorised (a hand-written loop), pillowN."""
import io
import statistics
import sys
import time

import numpy
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

IMAGES, BATCH, EPOCHS = 50_000, 256, 3
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
STD = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
CONTEXT, TOKEN_BATCH, TOKEN_BATCHES = 1024, 16, 2000
what, variant = sys.argv[1], sys.argv[-1]
workers = int(variant[-1]) if variant[-1].isdigit() else 0


def order(size, epoch):
    return torch.randperm(size, generator=torch.Generator().manual_seed(1 + epoch))


class Order:
    """The epoch's order, also for DataLoader."""

    def __init__(self, size):
        self.size, self.epoch = size, 0

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(order(self.size, self.epoch).tolist())


def loader_of(dataset, batch, whole=False):
    sampler = Order(len(dataset))
    more = {"num_workers": workers, "persistent_workers": workers > 0} | ({"prefetch_factor": 4} if workers else {})
    if whole:
        loader = DataLoader(dataset, sampler=BatchSampler(sampler, batch, False), batch_size=None, **more)
    else:
        loader = DataLoader(dataset, sampler=sampler, batch_size=batch, **more)

    def batches(epoch):
        sampler.epoch = epoch
        return iter(loader)

    return batches


def report(value, digest):
    print(f'{{"value": {value}, "digest": {float(digest)!r}}}')


def epoch_time(batches, epochs, count):
    times = []
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        for _ in batches(epoch):
            pass
        times.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(times)


def augment_one(image):
    padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
    top, left = int(torch.randint(9, ())), int(torch.randint(9, ()))
    image = padded[:, top:top + 32, left:left + 32]
    if torch.rand(()) < 0.5:
        image = image.flip(-1)
    return image.float().div_(255).sub_(MEAN).div_(STD)


def augment_batch(images):
    """Each image its own window and flip, by one gather."""
    n = len(images)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    rows = torch.randint(9, (n, 1)) + torch.arange(32)
    columns = torch.randint(9, (n, 1)) + torch.arange(32)
    columns = torch.where(torch.rand(n, 1) < 0.5, columns.flip(1), columns)
    places = (rows[:, :, None] * 40 + columns[:, None, :]).view(n, 1, -1).expand(n, 3, -1)
    cut = padded.view(n, 3, -1).gather(2, places).view(n, 3, 32, 32)
    return cut.float().div_(255).sub_(MEAN).div_(STD)


class Augmented(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        if isinstance(index, list):
            index = torch.tensor(index)
            return augment_batch(self.images[index]), self.labels[index]
        return augment_one(self.images[index]), self.labels[index]


class Whole(TensorDataset):
    def __getitem__(self, index):
        return super().__getitem__(torch.tensor(index))


def images(augmented):
    torch.manual_seed(0)
    pixels, labels = torch.randint(256, (IMAGES, 3, 32, 32), dtype=torch.uint8), torch.arange(IMAGES)
    whole = variant.startswith("batched")
    if variant == "vectorised":
        def batches(epoch):
            for index in order(IMAGES, epoch).split(BATCH):
                input = pixels.index_select(0, index)
                yield augment_batch(input) if augmented else input, labels.index_select(0, index)
    else:
        dataset = Augmented(pixels, labels) if augmented else (Whole if whole else TensorDataset)(pixels, labels)
        batches = loader_of(dataset, BATCH, whole)
    digest = 0.0
    for number, (input, _) in enumerate(batches(0), 1):
        digest += input.square().mean().item() if augmented else number * input[0].sum().item()
    report(epoch_time(batches, 1 if augmented and not whole and variant != "vectorised" else EPOCHS, IMAGES), digest)


class Tokens(Dataset):
    def __init__(self, file):
        self.tokens = numpy.memmap(file, dtype="<u2", mode="r")

    def __len__(self):
        return (len(self.tokens) - 1) // CONTEXT

    def __getitem__(self, index):
        window = torch.from_numpy(self.tokens[index * CONTEXT:index * CONTEXT + CONTEXT + 1].astype(numpy.int64))
        return window[:-1], window[1:]


def token_batches(file):
    dataset = Tokens(file)
    if variant != "vectorised":
        return loader_of(dataset, TOKEN_BATCH)

    def batches(epoch):
        for index in order(len(dataset), epoch).split(TOKEN_BATCH):
            samples = [dataset[i] for i in index.tolist()]
            yield torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])

    return batches


def tokens(file):
    batches = token_batches(file)
    digest, it = 0, batches(0)
    for number in range(TOKEN_BATCHES):
        digest += number % 7 * next(it)[1][0][0].item()
    del it
    it = batches(1)
    start = time.perf_counter()
    for _ in range(TOKEN_BATCHES):
        next(it)
    report((time.perf_counter() - start) * 1e9 / (TOKEN_BATCHES * TOKEN_BATCH * CONTEXT), digest)


def first(file):
    start = time.perf_counter()
    batch = next(iter(token_batches(file)(0)))
    report((time.perf_counter() - start) * 1e3, batch[0].sum().item())


class Photographs(Dataset):
    def __init__(self, folder):
        import pathlib
        self.paths = sorted(pathlib.Path(folder).glob("*/*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        data = self.paths[index].read_bytes()
        if variant.startswith("pillow"):
            from PIL import Image
            image = Image.open(io.BytesIO(data)).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
            return torch.from_numpy(numpy.array(image)).permute(2, 0, 1)
        from torchvision.io import ImageReadMode, decode_jpeg
        from torchvision.transforms.v2 import functional
        bytes_ = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return functional.resize(decode_jpeg(bytes_, ImageReadMode.RGB), [224, 224], antialias=True)


def photographs(folder):
    torch.set_num_threads(1)
    dataset = Photographs(folder)
    loader = DataLoader(dataset, batch_size=32, num_workers=workers, persistent_workers=workers > 0)
    digest = sum(batch.float().mean().item() for batch in loader)
    report(epoch_time(lambda _: loader, 1, len(dataset)), digest)


if what in ("images", "augmented"):
    images(what == "augmented")
else:
    {"tokens": tokens, "first": first, "photographs": photographs}[what](sys.argv[2])
