"""`seedflow bench kernels`: the CPU kernels beside plain torch and other libraries, one thread each."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from seedflow import kernels
from seedflow.bench.peers import sum_tree_peers
from seedflow.bench.timing import Measurement, Target, compare
from seedflow.kernels import registry
from seedflow.kernels.registry import PORTABLE

CLIPS: dict[str, Any] = {"rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0, "trace_decay": 1.0}
COSTS: dict[str, Any] = {"value_cost": 0.5, "entropy_cost": 0.01}


def measure(rounds: int = 50) -> Iterator[Measurement]:
    """Measure kernel after kernel; `rounds` is how often each contender gets its turn."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for part in PARTS:
            yield from part(rounds)
    finally:
        torch.set_num_threads(threads)


def unroll(steps: int, batch: int) -> dict[str, Any]:
    """Inputs of V-trace: a tenth of the transitions is none."""
    generator = torch.Generator().manual_seed(1)
    valid = torch.rand(steps, batch, generator=generator) > 0.1
    return {
        "log_rhos": torch.randn(steps, batch, generator=generator),
        "rewards": torch.randn(steps, batch, generator=generator),
        "discounts": 0.99 * valid,
        "values": torch.randn(steps + 1, batch, generator=generator),
        "valid": valid,
    }


def vtrace(rounds: int) -> Iterator[Measurement]:
    steps, batch = 20, 128
    inputs = unroll(steps, batch)
    out = kernels.vtrace(**inputs, **CLIPS)
    eager = _stand_in("vtrace", inputs, CLIPS, out)
    scan = cast(Any, sys.modules["seedflow.kernels.vtrace"])._scan
    arrays = [x.numpy() for x in inputs.values()]
    results = [x.numpy() for x in out]
    contenders: dict[str, Callable[[], object]] = {
        "kernel": lambda: scan(*arrays, *CLIPS.values(), *results),
        "public function": lambda: kernels.vtrace(**inputs, **CLIPS),
        "torch eager": eager,
    }
    notes = []
    try:
        contenders["torch.compile"] = _compiled(eager)
    except Exception as error:  # no compiler on this machine, or one that torch does not like
        notes.append(f"left out: torch.compile ({type(error).__name__})")
    targets = (
        Target("kernel", "torch eager", 15.0),
        Target("public function", "torch eager", 5.0),
        Target("public function", "torch.compile", 2.0),
    )
    yield compare(f"vtrace, T = {steps}, B = {batch}", contenders, targets, rounds=rounds, notes=tuple(notes))


def vtrace_loss(rounds: int) -> Iterator[Measurement]:
    steps, batch, width = 20, 128, 6
    generator = torch.Generator().manual_seed(2)
    inputs = unroll(steps, batch)
    del inputs["log_rhos"]
    inputs["actions"] = torch.randint(0, width, (steps, batch), generator=generator)
    inputs["behaviour_log_probs"] = -1.0 - torch.rand(steps, batch, generator=generator)
    logits = torch.randn(steps + 1, batch, width, generator=generator).requires_grad_()
    values = inputs.pop("values").requires_grad_()

    def backward(loss: Callable[..., Tensor]) -> Callable[[], None]:
        def run() -> None:
            logits.grad = values.grad = None
            loss(logits, values, **inputs).backward()  # type: ignore[no-untyped-call]

        return run

    def ours(logits: Tensor, values: Tensor, **inputs: Any) -> Tensor:
        return kernels.vtrace_loss(logits=logits, values=values, **inputs, **CLIPS, **COSTS).total

    contenders = {
        "public function, forward and backward": backward(ours),
        "torch graph around the vtrace kernel": backward(graph_of_vtrace_loss),
    }
    fused, graph = contenders
    targets = (Target(fused, graph, 3.0),)
    yield compare(f"vtrace_loss, T = {steps}, B = {batch}, A = {width}", contenders, targets, rounds=rounds)


def graph_of_vtrace_loss(
    logits: Tensor,
    values: Tensor,
    *,
    actions: Tensor,
    behaviour_log_probs: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    valid: Tensor,
) -> Tensor:
    """The V-trace loss as a graph of torch's functions; targets by the kernel, nothing reported."""
    log_policy = torch.log_softmax(logits[:-1], dim=-1)
    log_prob = log_policy.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    entropy = -(log_policy.exp() * log_policy).sum(-1)
    log_rhos = (log_prob - behaviour_log_probs).detach()
    targets = kernels.vtrace(log_rhos, rewards, discounts, values.detach(), valid, **CLIPS)
    mask = valid.to(torch.float32)
    count = mask.sum().clamp(min=1.0)
    policy = -(log_prob * targets.advantages * mask).sum() / count
    value = 0.5 * ((targets.vs - values[:-1]).square() * mask).sum() / count
    bonus = (entropy * mask).sum() / count
    return policy + float(COSTS["value_cost"]) * value - float(COSTS["entropy_cost"]) * bonus


def r2d2_loss(rounds: int) -> Iterator[Measurement]:
    indices, batch, width = 120, 64, 6
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(indices, batch, width, generator=generator)
    flags = torch.rand(3, indices, batch, generator=generator) < 0.02
    inputs: dict[str, Any] = {
        "q_online": q,
        "q_target": q + 0.1,
        "actions": torch.randint(0, width, (indices, batch), generator=generator),
        "rewards": torch.randn(indices, batch, generator=generator),
        "terminated": flags[0],
        "truncated": flags[1],
        "first": flags[2],
        "weights": torch.rand(batch, generator=generator),
    }
    settings: dict[str, Any] = {
        "burn_in": 40,
        "n_step": 5,
        "discount": 0.997,
        "rescale_epsilon": 1e-3,
        "eta": 0.9,
    }
    loss = kernels.r2d2_loss(**inputs, **settings)
    stand_in = _stand_in("r2d2_loss", inputs, settings, (*loss, torch.empty_like(q)), None)
    contenders = {
        "public function": lambda: kernels.r2d2_loss(**inputs, **settings),
        "torch eager": stand_in,
    }
    yield compare(f"r2d2_loss, L = {indices}, B = {batch}, A = {width}", contenders, rounds=rounds)


def returns(rounds: int) -> Iterator[Measurement]:
    inputs = unroll(20, 128)
    del inputs["log_rhos"]
    out = kernels.gae(**inputs, trace_decay=0.95)
    contenders = {
        "public function": lambda: kernels.gae(**inputs, trace_decay=0.95),
        "torch eager": _stand_in("gae", inputs, {"trace_decay": 0.95}, out),
    }
    yield compare("gae, T = 20, B = 128", contenders, rounds=rounds)
    contenders = {
        "public function": lambda: cast(Any, kernels.n_step(**inputs, n=5)),
        "torch eager": _stand_in("n_step", inputs, {"n": 5}, (out.returns,)),
    }
    yield compare("n_step, T = 20, B = 128, n = 5", contenders, rounds=rounds)


def sample_categorical(rounds: int) -> Iterator[Measurement]:
    for batch, width in ((32, 6), (256, 18)):
        generator = torch.Generator().manual_seed(4)
        logits = torch.randn(batch, width, generator=generator)

        def race(logits: Tensor = logits, generator: torch.Generator = generator) -> tuple[Tensor, ...]:
            log_policy = torch.log_softmax(logits, dim=-1)
            clocks = torch.empty_like(logits).exponential_(generator=generator).log_()
            action = (log_policy - clocks).argmax(dim=-1, keepdim=True)
            entropy = -(log_policy.exp() * log_policy).sum(-1)
            return action, log_policy.gather(-1, action), entropy

        def kernel(logits: Tensor = logits, generator: torch.Generator = generator) -> object:
            return kernels.sample_categorical(logits, generator)

        contenders: dict[str, Callable[[], object]] = {"public function": kernel, "torch eager": race}
        yield compare(f"sample_categorical, B = {batch}, A = {width}", contenders, rounds=rounds)


def optimizer_steps(rounds: int) -> Iterator[Measurement]:
    for size in (10_000, 1_700_000):
        generator = torch.Generator().manual_seed(5)
        parameter = torch.nn.Parameter(torch.randn(size, generator=generator))
        gradient = torch.randn(size, generator=generator)
        parameter.grad = gradient.clone()
        one, two = torch.zeros(size), torch.zeros(size)
        adam = torch.optim.Adam([parameter], lr=1e-4, fused=True)
        rmsprop = torch.optim.RMSprop([parameter], lr=1e-4, foreach=False)
        step: dict[str, Any] = {"learning_rate": 1e-4, "epsilon": 1e-8, "clip_norm": 40.0}

        def torchs(optimizer: torch.optim.Optimizer, parameter: Tensor = parameter) -> Callable[[], None]:
            def run() -> None:
                assert parameter.grad is not None
                norm = torch.linalg.vector_norm(parameter.grad)
                parameter.grad.mul_((40.0 / (norm + 1e-6)).clamp(max=1.0))
                optimizer.step()

            return run

        def adam_step(
            arrays: tuple[Tensor, ...] = (parameter, gradient, one, two), step: dict[str, Any] = step
        ) -> object:
            return kernels.adam_step(*arrays, step=10, betas=(0.9, 0.999), **step)

        def rmsprop_step(
            arrays: tuple[Tensor, ...] = (parameter, gradient, two), step: dict[str, Any] = step
        ) -> object:
            return kernels.rmsprop_step(*arrays, decay=0.99, **step)

        contenders: dict[str, Callable[[], object]] = {
            "public function": adam_step,
            "torch, fused, norm and clip before it": torchs(adam),
        }
        yield compare(f"adam_step, n = {size}", contenders, rounds=rounds)
        contenders = {"public function": rmsprop_step, "torch, norm and clip before it": torchs(rmsprop)}
        yield compare(f"rmsprop_step, n = {size}", contenders, rounds=rounds)


def core_states(rounds: int) -> Iterator[Measurement]:
    size, width, batch = 1024, 512, 256
    generator = torch.Generator().manual_seed(6)
    tables = [torch.randn(size, width, generator=generator) for _ in range(2)]
    rows = torch.randperm(size, generator=generator)[:batch]
    first = torch.rand(batch, generator=generator) < 0.05
    out = [torch.empty(batch, width) for _ in tables]
    mask = first.unsqueeze(1)

    def kernel() -> None:
        kernels.recurrent_gather(tables, rows, first, out)
        kernels.recurrent_scatter(tables, rows, out)

    def select() -> None:
        for table, state in zip(tables, out, strict=True):
            torch.index_select(table, 0, rows, out=state)
            state.masked_fill_(mask, 0)
        for table, state in zip(tables, out, strict=True):
            table.index_copy_(0, rows, state)

    def index() -> None:
        for table, state in zip(tables, out, strict=True):
            state.copy_(table[rows])
            state[first] = 0
        for table, state in zip(tables, out, strict=True):
            table[rows] = state

    contenders = {"public functions": kernel, "torch, index_select": select, "torch, indexing": index}
    targets = tuple(Target("public functions", name, 1.15, "slower") for name in list(contenders)[1:])
    name = f"recurrent_gather and recurrent_scatter, two tables [{size}, {width}], B = {batch}"
    yield compare(name, contenders, targets, rounds=rounds)


def unrolls(rounds: int) -> Iterator[Measurement]:
    slots, steps, batch = 96, 20, 32
    generator = torch.Generator().manual_seed(7)
    frames = torch.randint(0, 256, (slots, steps + 1, 84, 84), dtype=torch.uint8, generator=generator)
    chosen = torch.randperm(slots, generator=generator)[:batch]
    out = torch.empty(steps + 1, batch, 84, 84, dtype=torch.uint8)
    # The same bytes from the same places in memory, in slots' order: what a copy costs at least.
    source, target = frames[:batch].numpy().reshape(-1), out.numpy().reshape(-1)

    def select() -> None:
        torch.index_select(frames.transpose(0, 1), 1, chosen, out=out)

    contenders: dict[str, Callable[[], object]] = {
        "public function": lambda: kernels.unroll_gather([frames], chosen, [out]),
        "memcpy": lambda: np.copyto(target, source),
        "torch, index_select": select,
    }
    targets = (Target("public function", "memcpy", 1.5, "slower"),)
    name = f"unroll_gather, uint8 84 x 84, T = {steps}, B = {batch}"
    yield compare(name, contenders, targets, rounds=rounds)


def sum_tree(rounds: int) -> Iterator[Measurement]:
    capacity, count = 1_000_000, 256
    rng = np.random.default_rng(8)
    values = rng.random(capacity) + 0.01
    tree = kernels.sum_tree_new(capacity)
    kernels.sum_tree_set(tree, torch.arange(capacity), torch.from_numpy(values))
    peers, notes = sum_tree_peers(capacity, values, count)
    draws = [rng.random(count) for _ in range(200)]
    changes = [(rng.integers(0, capacity, count), rng.random(count) + 0.01) for _ in range(200)]

    def in_turn(function: Callable[..., object], arguments: list[Any]) -> Callable[[], object]:
        """Call with other arguments each time, since a walk just done is in the cache."""
        calls = iter(range(1 << 62))
        return lambda: function(*arguments[next(calls) % len(arguments)])

    samples = {
        "public function": in_turn(
            lambda u: kernels.sum_tree_sample(tree, torch.from_numpy(u)), [(u,) for u in draws]
        )
    }
    updates = {
        "public function": in_turn(
            lambda i, v: kernels.sum_tree_set(tree, torch.from_numpy(i), torch.from_numpy(v)), changes
        )
    }
    for name, peer in peers.items():
        samples[name] = in_turn(peer.sample, [(u,) for u in draws])
        updates[name] = in_turn(peer.update, changes)
    size = f"{capacity} leaves, K = {count}"
    targets = tuple(Target("public function", name, 1.5) for name in peers)
    yield compare(f"sum_tree_sample, {size}", samples, targets, rounds=rounds, notes=notes)
    targets = (Target("public function", "cpprb", 1.5), Target("public function", "torchrl", 1.0, "slower"))
    yield compare(f"sum_tree_set, {size}", updates, targets, rounds=rounds, notes=notes)


def _stand_in(
    operation: str, inputs: Mapping[str, Any], settings: Mapping[str, Any], *results: Any
) -> Callable[[], None]:
    """An operation's plain torch form, on arguments in the order of its twins."""
    function = registry.twins(operation)[PORTABLE]
    out = [x for result in results for x in (result if isinstance(result, tuple) else (result,))]
    arguments = [*inputs.values(), *settings.values(), *out]
    return lambda: function(*arguments)


def _compiled(function: Callable[[], None]) -> Callable[[], object]:
    """The function under torch.compile, compiled; silent."""
    compiled = torch.compile(function)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        compiled()
    return compiled


PARTS: tuple[Callable[[int], Iterator[Measurement]], ...] = (
    vtrace,
    vtrace_loss,
    r2d2_loss,
    returns,
    sample_categorical,
    optimizer_steps,
    core_states,
    unrolls,
    sum_tree,
)
"""What `measure` goes through."""
