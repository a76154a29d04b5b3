"""A driver of a scripted run, which says how far it is.

``python scripted_driver.py RUN_DIR [SCHEDULER [outlives]]``
"""

import sys
from pathlib import Path

from scripted_runs import MODULES, SPEC, make_config

from seedflow.cluster import Run, open_cluster


def main() -> None:
    run_dir = Path(sys.argv[1])
    config = make_config(runtime="local")
    if len(sys.argv) > 2:
        config = make_config(runtime="cluster", cluster={"scheduler": sys.argv[2]})
    print("begun", flush=True)
    with open_cluster(config) as client:
        print("connected", flush=True)
        outlives = "outlives" in sys.argv
        with Run(client, config, SPEC, run_dir, outlives_driver=outlives, on_note=print, **MODULES) as run:
            print("started", *([run.id] if outlives else []), flush=True)
            run.wait()
    print("ended", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
