"""Measurement of the time that each kind of torch operation takes."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from archlab.config.components.work import OperationKind
from archlab.errors import UserError
from archlab.model.context import Context
from archlab.model.decoder import Decoder
from archlab.model.torch_private import DispatchMode, backward_node


class Clocked(NamedTuple):
    """Total time and number of all operations of one kind in a step."""

    seconds: float
    """Total time of the operations, including the time that the clock adds to each."""
    calls: int


Part = Literal["encoder", "cross-attention", "decoder", "around the layers"]
"""Part of a model with an encoder. `decoder`: its layers without cross-attention, and its final norm. `around the
layers`: embeddings, head, loss and update."""


class Times(NamedTuple):
    """Times of one step."""

    by_kind: dict[OperationKind, Clocked]
    seconds_by_part: dict[Part, float]
    """Total time of the operations of each part. Empty if the model has no encoder."""


def clocked(model: Decoder, step: Callable[[], object], steps: int, device_type: str) -> Times:
    """Run an uncompiled step `steps` times. Return the times of the fastest run.

    The step may include a backward pass. Time that Python spends between operations is not counted.
    """
    wait = torch.cuda.synchronize if device_type == "cuda" else lambda: None
    results = list[Times]()
    clock = _Clock(model, wait)
    for _ in range(steps):
        clock.seconds, clock.calls, clock.parts = Counter(), Counter(), Counter()
        with clock:
            step()
        by_kind = {kind: Clocked(seconds, clock.calls[kind]) for kind, seconds in clock.seconds.items()}
        results.append(Times(by_kind, dict(clock.parts) if model.encoder else {}))
    clock.remove()
    return min(results, key=lambda times: sum(clocked.seconds for clocked in times.by_kind.values()))


_PLACES: tuple[OperationKind, ...] = ("norms", "activations", "scans")
"""Kinds of operation that the operation's name does not show, but the module that runs the operation."""


class _Clock(DispatchMode):
    supports_higher_order_operators = True  # compiled code runs as such an operator

    def __init__(self, model: Decoder, wait: Callable[[], object]) -> None:
        super().__init__()
        self.seconds, self.calls = Counter[OperationKind](), Counter[OperationKind]()
        self.parts = Counter[Part]()
        self._inside: dict[str, list[Any]] = {"kind": [], "part": []}
        self._wait = wait
        marked = [*_kinds_of_modules(model), *_parts_of_modules(model)]
        self._hooks = [hook for module, key, value in marked for hook in self._watch(module, key, value)]

    def _watch(self, module: nn.Module, key: str, value: str) -> Iterator[Any]:
        """Mark the operations of a module with `value`, in the forward and in the backward pass."""
        yield module.register_forward_pre_hook(lambda *_: self._inside[key].append(value))
        yield module.register_forward_hook(lambda _, inputs, result: self._leave(key, inputs, result))

    def _leave(self, key: str, inputs: tuple[Any, ...], result: Any) -> None:
        value = self._inside[key].pop()
        seen = {x.grad_fn for x in _tensors_of(inputs)}
        waiting: list[Any] = [result.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                node.metadata.setdefault(key, value)  # keep the value that an inner module has set
                waiting += [before for before, _ in node.next_functions]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True. Otherwise, torch would run compiled functions uncompiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self._wait()
        seconds, kind = time.perf_counter() - start, self._kind(func.name())
        self.seconds[kind] += seconds  # pyright: ignore[reportArgumentType]
        self.calls[kind] += 1
        self.parts[self._place("part") or "around the layers"] += seconds  # pyright: ignore[reportArgumentType]
        return result

    def _kind(self, operator: str) -> OperationKind:
        named, place = operation_kind(operator), self._place("kind")
        if place in ("norms", "activations") or (place == "scans" and named in (None, "attention")):
            return place
        if named not in (None, "compiled"):
            return named
        return place or "element-wise"

    def _place(self, key: str) -> Any:
        if self._inside[key]:
            return self._inside[key][-1]
        node: Any = backward_node()
        return None if node is None else node.metadata.get(key)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _kinds_of_modules(model: Decoder) -> Iterator[tuple[nn.Module, str, OperationKind]]:
    for module in model.modules():
        if kind := getattr(module, "timed_as", None):
            if kind not in _PLACES:
                raise UserError(f"{type(module).__name__}.timed_as is {kind!r}; allowed: {', '.join(_PLACES)}")
            yield module, "kind", kind


def _parts_of_modules(model: Decoder) -> Iterator[tuple[nn.Module, str, Part]]:
    if model.encoder is None:
        return
    yield model.encoder, "part", "encoder"
    for module in (model.summed, *model.layers, model.norm):
        yield module, "part", "decoder"
    for layer in model.layers:
        yield cast(nn.Module, layer.cross), "part", "cross-attention"


def _tensors_of(inputs: tuple[Any, ...]) -> Iterator[Tensor]:
    """Yield the tensors that a module gets, also those that layers share."""
    for x in inputs:
        if isinstance(x, Context):
            shared = (x.bias_BHTS, x.source_BSD, x.cross and x.cross.source_BSD)
            yield from (tensor for tensor in shared if tensor is not None)
        elif isinstance(x, Tensor):
            yield x


NamedKind = OperationKind | Literal["compiled"]
"""Kind of operation, determined from the operation's name.

`compiled` is a kernel that a compiler fused from several operations, most of them element-wise.
"""

_BY_NAME: tuple[tuple[NamedKind, tuple[str, ...]], ...] = (
    # The only function that an uncompiled model compiles itself is flex_attention.
    ("attention", ("scaled_dot_product", "flash", "fmha", "flex_attention", "inductor_compiled_code", "triton_tem")),
    ("attention", ("causal_products", "bmm")),
    ("products", ("mm", "linear", "grouped", "int8pack", "nvjet", "cutlass")),
    ("convolutions", ("convolution",)),
    ("loss", ("log_softmax", "logsoftmax", "nll_loss", "cross_entropy", "logsumexp")),
    ("softmax", ("_softmax",)),
    ("optimiser", ("adam", "vector_norm", "foreach")),
    ("compiled", ("cpp_fused", "triton_", "compiledfxgraph")),
    ("embedding", ("embedding",)),
)
"""For each kind, lowercase substrings of operation names. The first match determines the kind."""


def operation_kind(name: str) -> NamedKind | None:
    """Return the kind of an operation, determined from its name.

    Return None for a name that does not show the kind, such as `sum` or `copy`.
    """
    lower = name.lower()
    return next((kind for kind, parts in _BY_NAME if any(part in lower for part in parts)), None)


def time_by_kind(compute: Callable[[], object], device_type: str) -> dict[str, float]:
    """Call a function. Return the fraction of its time that each kind of operation takes, largest first.

    Norms and activations count as element-wise, because this function does not know in which module an operation runs.
    The result is empty if torch's profiler records no operations, for example because it may not observe the GPU.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise torch's profiler writes to stderr
    on_cuda = device_type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA] if on_cuda else [ProfilerActivity.CPU]) as seen:
        compute()
        if on_cuda:
            torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in seen.key_averages():
        kind = operation_kind(event.key) or "element-wise"
        times[kind] = times.get(kind, 0.0) + (event.self_device_time_total if on_cuda else event.self_cpu_time_total)
    total = sum(times.values())
    return {kind: times[kind] / total for kind in sorted(times, key=lambda kind: -times[kind]) if total}
