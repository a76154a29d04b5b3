"""A driver of a scripted run: ``python scripted_driver.py RUN_DIR [SCHEDULER]``; says how far it is."""

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
        with Run(client, config, SPEC, run_dir, on_note=print, **MODULES) as run:
            print("started", flush=True)
            run.wait()
    print("ended", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
