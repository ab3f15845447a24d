"""Measurement of the time that each kind of torch operation takes."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from archlab.config.components.work import OperationKind
from archlab.errors import UserError
from archlab.model.decoder import Decoder
from archlab.model.torch_private import DispatchMode, backward_node


class Clocked(NamedTuple):
    """Total time and number of all operations of one kind in a step."""

    seconds: float
    """Total time of the operations, including the time that the clock adds to each."""
    calls: int


def clocked(model: Decoder, step: Callable[[], object], steps: int, device_type: str) -> dict[OperationKind, Clocked]:
    """Run an uncompiled step `steps` times. Return the times of the fastest run, by kind of operation.

    The step may include a backward pass. Time that Python spends between operations is not counted.
    """
    wait = torch.cuda.synchronize if device_type == "cuda" else lambda: None
    results = list[dict[OperationKind, Clocked]]()
    clock = _Clock(model, wait)
    for _ in range(steps):
        clock.seconds, clock.calls = Counter[OperationKind](), Counter[OperationKind]()
        with clock:
            step()
        results.append({kind: Clocked(seconds, clock.calls[kind]) for kind, seconds in clock.seconds.items()})
    clock.remove()
    return min(results, key=lambda result: sum(clocked.seconds for clocked in result.values()))


_PLACES: tuple[OperationKind, ...] = ("norms", "activations", "scans")
"""Kinds of operation that the operation's name does not show, but the module that runs the operation."""


class _Clock(DispatchMode):
    def __init__(self, model: Decoder, wait: Callable[[], object]) -> None:
        super().__init__()
        self.seconds, self.calls = Counter[OperationKind](), Counter[OperationKind]()
        self._inside: list[OperationKind] = []
        self._wait = wait
        self._hooks = [hook for module in model.modules() for hook in self._watch(module)]

    def _watch(self, module: nn.Module) -> Iterator[Any]:
        if kind := getattr(module, "timed_as", None):
            if kind not in _PLACES:
                raise UserError(f"{type(module).__name__}.timed_as is {kind!r}; allowed: {', '.join(_PLACES)}")
            yield module.register_forward_pre_hook(lambda *_: self._inside.append(kind))
            yield module.register_forward_hook(lambda _, inputs, result: self._leave(inputs, result))

    def _leave(self, inputs: tuple[Any, ...], result: Any) -> None:
        kind = self._inside.pop()
        seen = {x.grad_fn for x in inputs if isinstance(x, Tensor)}
        waiting: list[Any] = [result.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                node.metadata.setdefault("kind", kind)  # keep the kind that an inner module has set
                waiting += [before for before, _ in node.next_functions]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self._wait()
        seconds, kind = time.perf_counter() - start, self._kind(func.name())
        self.seconds[kind] += seconds  # pyright: ignore[reportArgumentType]
        self.calls[kind] += 1
        return result

    def _kind(self, operator: str) -> OperationKind:
        named, place = kind_of(operator), self._place()
        if place in ("norms", "activations") or (place == "scans" and named in (None, "attention")):
            return place
        if named not in (None, "compiled"):
            return named
        return place or "element-wise"

    def _place(self) -> OperationKind | None:
        if self._inside:
            return self._inside[-1]
        node: Any = backward_node()
        return None if node is None else node.metadata.get("kind")

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


NamedKind = OperationKind | Literal["compiled"]
"""Kind of operation, determined from the operation's name.

`compiled` is a kernel that a compiler fused from several operations, most of them element-wise.
"""

_BY_NAME: tuple[tuple[NamedKind, tuple[str, ...]], ...] = (
    ("attention", ("scaled_dot_product", "flash", "fmha", "flex_attention", "triton_tem", "causal_products", "bmm")),
    ("products", ("mm", "linear", "grouped", "int8pack", "nvjet", "cutlass")),
    ("convolutions", ("convolution",)),
    ("loss", ("log_softmax", "logsoftmax", "nll_loss", "cross_entropy", "logsumexp")),
    ("softmax", ("_softmax",)),
    ("optimiser", ("adam", "vector_norm", "foreach")),
    ("compiled", ("cpp_fused", "triton_", "compiledfxgraph")),
    ("embedding", ("embedding",)),
)
"""For each kind, lowercase substrings of operation names. The first match determines the kind."""


def kind_of(name: str) -> NamedKind | None:
    """Return the kind of an operation, determined from its name.

    Return None for a name that does not show the kind, such as `sum` or `copy`.
    """
    lower = name.lower()
    return next((kind for kind, parts in _BY_NAME if any(part in lower for part in parts)), None)


def time_by_kind(compute: Callable[[], object], device_type: str) -> dict[str, float]:
    """Call a function. Return the fraction of its time that each kind of operation takes, largest first.

    Norms and activations count as element-wise, because this function does not know in which module an operation runs.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise torch's profiler writes to stderr
    on_cuda = device_type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA] if on_cuda else [ProfilerActivity.CPU]) as seen:
        compute()
        if on_cuda:
            torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in seen.key_averages():
        kind = kind_of(event.key) or "element-wise"
        times[kind] = times.get(kind, 0.0) + (event.self_device_time_total if on_cuda else event.self_cpu_time_total)
    total = sum(times.values())
    return {kind: times[kind] / total for kind in sorted(times, key=lambda kind: -times[kind])}
