"""Which environment of a group is at work: known while it is, and when it has failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, SupportsFloat

import gymnasium as gym

NOBODY = -1


class Position(Protocol):
    """One number: the id of the environment that is made, reset or stepped just now; `NOBODY` if unknown."""

    def __setitem__(self, index: int, value: int, /) -> None: ...


class Numbered(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that says which one it is, before every call and with every exception.

    Parameters
    ----------
    env
        The environment.
    env_id
        Its id.
    position
        Where to say it. May be shared memory, which outlives a crash.
    """

    def __init__(self, env: gym.Env[Any, Any], env_id: int, position: Position) -> None:
        super().__init__(env)
        self._env_id, self._position = env_id, position

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._position[0] = self._env_id
        try:
            return self.env.reset(seed=seed, options=options)
        except BaseException as error:
            error.add_note(f"in reset of environment {self._env_id}")
            raise

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        self._position[0] = self._env_id
        try:
            return self.env.step(action)
        except BaseException as error:
            error.add_note(f"in step of environment {self._env_id}")
            raise


def numbered(
    make_one: Callable[[], gym.Env[Any, Any]], env_ids: Sequence[int], position: Position | None = None
) -> list[Callable[[], gym.Env[Any, Any]]]:
    """Makers of one numbered environment each."""
    place: Position = [NOBODY] if position is None else position

    def maker(env_id: int) -> Callable[[], gym.Env[Any, Any]]:
        def make() -> gym.Env[Any, Any]:
            place[0] = env_id
            try:
                env = make_one()
            except BaseException as error:
                error.add_note(f"in __init__ of environment {env_id}")
                raise
            return Numbered(env, env_id, place)

        return make

    return [maker(env_id) for env_id in env_ids]
