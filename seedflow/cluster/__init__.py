"""Placing and supervising the roles of a run on a Dask cluster.

`open_cluster` connects, `plan` decides where the learner and the actors go, `Run` keeps them there: each
role is a child process under a Dask task (`supervise`), and Dask carries none of their data.
"""

from seedflow.cluster.adoption import Adoption
from seedflow.cluster.connect import open_cluster
from seedflow.cluster.placement import Place, Placement, WorkerInfo, plan
from seedflow.cluster.preflight import Preflight
from seedflow.cluster.run import Run
from seedflow.cluster.status import RoleStatus, RunStatus

__all__ = [
    "Adoption",
    "Place",
    "Placement",
    "Preflight",
    "RoleStatus",
    "Run",
    "RunStatus",
    "WorkerInfo",
    "open_cluster",
    "plan",
]
