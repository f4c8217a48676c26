"""A stream of its own process: takes the cursor `archive`, reads a batch, and waits to be killed.

python cursor_holder.py URL
"""

from __future__ import annotations

import sys

from stream_batches import Query


def main() -> None:
    query = Query(sys.argv[1], queue="orders", cursor="archive")
    query.batch()
    print("reads", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
