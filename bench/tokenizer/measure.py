"""One measurement: fit a tokenizer of 3 x 1,024 codes and assign all items; prints one JSON document."""

import argparse
import json
import resource
import sys
import time

import torch
from torch import Tensor

from model.tokenizer.fitting import fit_tokenizer
from model.tokenizer.tokenizer import TokenizerConfig, split

WIDTH, SIZES = 128, (1_024, 1_024, 1_024)
KINDS = {
    "residual_kmeans": TokenizerConfig(codebook_sizes=SIZES),
    "balanced": TokenizerConfig(codebook_sizes=SIZES, balance=1.5),
    "rq_vae": TokenizerConfig(codebook_sizes=SIZES, kind="rq_vae"),
}


def item_vectors(num_items: int) -> Tensor:
    """Unit vectors [N, WIDTH] of two levels of clusters, sizes ~ 1 / rank, and noise."""
    generator = torch.Generator().manual_seed(0)
    sizes = 1 / torch.arange(1, 2_001)
    centres = torch.randn(2_000, WIDTH, generator=generator)
    inner = 0.7 * torch.randn(500, WIDTH, generator=generator)
    vectors = torch.randn(num_items, WIDTH, generator=generator).mul_(0.5)
    for rows in split(vectors):
        rows.add_(centres[torch.multinomial(sizes, len(rows), True, generator=generator)])
        rows.add_(inner[torch.randint(len(inner), (len(rows),), generator=generator)])
        rows.div_(rows.norm(dim=1, keepdim=True))
    return vectors


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("num_items", type=int)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    vectors, config = item_vectors(given.num_items), KINDS[given.kind]
    before_mib = peak_mib()
    started, started_cpu = time.perf_counter(), time.process_time()
    tokenizer = fit_tokenizer(vectors, config, seed=0)
    fitted, fitted_cpu, fitted_mib = time.perf_counter(), time.process_time(), peak_mib()
    codes = tokenizer.assign(vectors, config.bounds)
    assigned = time.perf_counter()
    blocks = zip(split(vectors), split(codes), strict=True)
    lost = sum(float((x - tokenizer.decode(c)).square().sum()) for x, c in blocks)
    spread = float(vectors.var(0, correction=0).sum()) * len(vectors)
    document = {
        "fit_s": round(fitted - started, 1),
        "fit_cpu_s": round(fitted_cpu - started_cpu, 1),
        "assign_s": round(assigned - fitted, 1),
        "vectors_mib": round(vectors.numel() * 4 / 2**20),
        "before_mib": round(before_mib),
        "peak_mib": round(fitted_mib),
        "unexplained": round(lost / spread, 3),
    }
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
