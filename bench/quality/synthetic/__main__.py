"""Write a synthetic lifelong stream: an event log, its items, and the truth about every interaction."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from bench.quality.synthetic.event_stream import write_stream
from bench.quality.synthetic.stream_config import StreamConfig, product_segments


def main() -> None:
    """Parse, write, say what was written."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality.synthetic", description=__doc__)
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--min-length", type=int, help="interactions of the shortest life")
    parser.add_argument("--max-length", type=int, help="of the longest, such as 100000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="a directory")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--segments",
        choices=("small", "product"),
        default="small",
        help="what causes lie beyond: 80 interactions and a chunk of 16, or 5,000 and a chunk of 256",
    )
    arguments = parser.parse_args()
    segments = product_segments() if arguments.segments == "product" else StreamConfig()
    try:
        config = replace(
            segments,
            num_users=arguments.users,
            seed=arguments.seed,
            min_length=arguments.min_length or segments.min_length,
            max_length=arguments.max_length or segments.max_length,
        )
    except ValueError as error:
        parser.error(str(error))
    files = write_stream(config, arguments.out, arguments.workers)
    print(f"{files.events}, {files.items.name}, {files.content.name}, {files.truth.name}")


if __name__ == "__main__":
    main()
