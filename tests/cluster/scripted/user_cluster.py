"""A Dask cluster in a process of its own: prints its address, ends with its standard input.

``python user_cluster.py WORKERS [THREADS [RESOURCES]]``, with the resources of each worker in JSON.
"""

import json
import logging
import sys

from distributed import LocalCluster


def main() -> None:
    with LocalCluster(
        n_workers=int(sys.argv[1]),
        threads_per_worker=int(sys.argv[2]) if len(sys.argv) > 2 else 1,
        memory_limit=0,
        resources=json.loads(sys.argv[3]) if len(sys.argv) > 3 else None,
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    ) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
