"""A cluster to look at."""

from tests.cluster.conftest import scripted_roles, user_client

__all__ = ["scripted_roles", "user_client"]
