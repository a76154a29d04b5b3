"""What cores remember, and when they forget."""

import numpy as np
import pytest
import torch

from seedflow.config import NetworkConfig
from seedflow.networks import ActorCritic, FrameStack, NetworkInput, PreviousAction
from seedflow.specs import ArraySpec, EnvSpec

PIXEL = ArraySpec("observation", (), np.dtype("uint8"))
IMAGE = EnvSpec((ArraySpec("observation", (36, 36), np.dtype("uint8")),), num_actions=3)
VECTOR = EnvSpec((ArraySpec("observation", (4,), np.dtype("float32")),), num_actions=3)


def stack_one_by_one(padding: str, frames: list[int], first: set[int]) -> list[list[int]]:
    """Push pixels through a stack of depth 4; `first` names the frames that begin an episode."""
    stack = FrameStack(PIXEL, 4, padding)  # type: ignore[arg-type]
    state: tuple[torch.Tensor, ...] = (torch.zeros(1, 3, dtype=torch.uint8),)
    seen = []
    for frame in frames:
        pixel = torch.tensor([[frame]], dtype=torch.uint8)
        stacked, state = stack(pixel, torch.tensor([[frame in first]]), state)
        seen.append(stacked[0, 0].tolist())
    return seen


def test_frame_stack_is_newest_first() -> None:
    assert stack_one_by_one("zero", [1, 2], first=set()) == [[1, 0, 0, 0], [2, 1, 0, 0]]
    assert stack_one_by_one("zero", [1, 2], first={2})[-1] == [2, 0, 0, 0]
    assert stack_one_by_one("zero", list(range(1, 9)), first={2})[-1] == [8, 7, 6, 5]
    assert stack_one_by_one("zero", list(range(1, 9)), first={7})[-1] == [8, 7, 0, 0]


def test_repeat_padding_shows_the_first_frame_before_itself() -> None:
    assert stack_one_by_one("repeat", [5, 6, 7], first={5}) == [[5, 5, 5, 5], [6, 5, 5, 5], [7, 6, 5, 5]]
    assert stack_one_by_one("repeat", [1, 2, 3, 7, 8], first={1, 7})[-1] == [8, 7, 7, 7]


@pytest.mark.parametrize("padding", ["repeat", "zero"])
def test_an_unrolled_stack_equals_a_stepped_one(padding: str) -> None:
    first = {1, 6, 7, 12}
    frames = list(range(1, 16))
    stack = FrameStack(PIXEL, 4, padding)  # type: ignore[arg-type]
    flags = torch.tensor([[frame in first] for frame in frames])
    pixels = torch.tensor(frames, dtype=torch.uint8).unsqueeze(1)
    unrolled, state = stack(pixels, flags, (torch.zeros(1, 3, dtype=torch.uint8),))
    assert unrolled[:, 0].tolist() == stack_one_by_one(padding, frames, first)
    assert state[0].tolist() == [unrolled[-1, 0, :3].tolist()]


def test_previous_action_is_one_hot_and_none_at_an_episodes_start() -> None:
    core = PreviousAction(3)
    actions = torch.tensor([[2], [0], [1]])
    first = torch.tensor([[False], [False], [True]])
    before = core.after(torch.tensor([1]))
    assert core(actions, first, before)[:, 0].tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]


NETWORKS = {
    "feed-forward": (VECTOR, NetworkConfig()),
    "lstm": (VECTOR, NetworkConfig(core="lstm")),
    "lstm with inputs": (
        VECTOR,
        NetworkConfig(core="lstm", inputs=("previous_action", "previous_reward")),
    ),
    "frames, lstm and inputs": (
        IMAGE,
        NetworkConfig(
            encoder="nature",
            features=32,
            frame_stack={"depth": 4},  # type: ignore[arg-type]
            core="lstm",
            inputs=("previous_reward", "previous_action"),
        ),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_unrolled_equals_the_same_network_stepped(name: str) -> None:
    spec, config = NETWORKS[name]
    torch.manual_seed(0)
    network = ActorCritic(spec, config)
    steps, batch = (100, 3) if spec is VECTOR else (12, 3)
    leaf = spec.observation[0]
    if leaf.dtype == np.uint8:
        observation = torch.randint(0, 256, (steps, batch, *leaf.shape), dtype=torch.uint8)
    else:
        observation = torch.randn(steps, batch, *leaf.shape)
    reward, action = torch.randn(steps, batch), torch.randint(0, 3, (steps, batch))
    first = torch.rand(steps, batch) < 0.1
    start = tuple(
        torch.zeros(batch, *s.shape, dtype=getattr(torch, s.dtype.name)) for s in network.state_specs
    )
    with torch.no_grad():
        unrolled, final = network(NetworkInput((observation,), reward, first, action), start)
        state, logits, values = start, [], []
        for t in range(steps):
            now = NetworkInput((observation[t : t + 1],), reward[t : t + 1], first[t : t + 1])
            output, state = network(now, state)
            state = network.remember(state, action[t])
            logits.append(output.logits)
            values.append(output.value)
    torch.testing.assert_close(torch.cat(logits), unrolled.logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.cat(values), unrolled.value, rtol=0, atol=1e-5)
    for stepped, whole in zip(state, network.remember(final, action[-1]), strict=True):
        torch.testing.assert_close(stepped, whole, rtol=0, atol=1e-5)
