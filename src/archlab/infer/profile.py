"""Where the time of a training step goes, operation by operation, against where its FLOPs and bytes are counted."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from archlab.config.base import Base
from archlab.config.schema import Config
from archlab.config.training import check_next_token, resolve_train
from archlab.config.work import KINDS, Counting, Kind, Pass
from archlab.cost.memory import training_memory
from archlab.cost.params import parameters
from archlab.cost.work import by_kind, training_step
from archlab.model.decoder import Decoder
from archlab.train.device import choose_device
from archlab.train.optim import make_optimizer
from archlab.train.step import update

WARM_UP = 2

_BY_NAME: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("attention", ("scaled_dot_product", "flex_attention", "flash", "bmm")),
    ("products", ("mm", "grouped_linear", "grouped_outer")),
    ("convolutions", ("convolution",)),
    ("embedding", ("embedding",)),
    ("loss", ("log_softmax", "nll_loss", "logsumexp")),
    ("optimiser", ("adam", "foreach", "linalg_vector_norm")),
)
"""What an operator's name contains; the first that fits."""

_BY_MODULE: dict[str, Kind] = {"archlab.model.norms": "norms", "archlab.model.activations": "activations"}
"""Where a module is defined -> the kind of what it computes."""


class Share(Base):
    """One kind of operation."""

    kind: Kind
    flops: float
    """Share of a step's FLOPs, counted."""
    n_bytes: float
    """Share of a step's bytes, counted."""
    time: float
    """Share of a step's time, measured; a softmax's is within that of attention."""


class Profile(Base):
    """A training step on this machine, not compiled."""

    seconds: float
    """Of all operations; Python's time between them is not in it."""
    whole_seconds: float
    """Of a step without the clock."""
    shares: list[Share]
    device: str
    dtype: str
    threads: int


class _Clock(TorchDispatchMode):
    """Times every operation, forward and backward."""

    def __init__(self, model: Decoder, wait: Callable[[], object]) -> None:
        super().__init__()
        self.seconds = Counter[Kind]()
        self._inside: list[Kind] = []
        self._vocab_size, self._wait = model.config.vocab_size, wait
        self._hooks = [hook for module in model.modules() for hook in self._watch(module)]

    def _watch(self, module: nn.Module) -> Iterator[Any]:
        if kind := _BY_MODULE.get(type(module).__module__):
            yield module.register_forward_pre_hook(lambda *_: self._inside.append(kind))
            yield module.register_forward_hook(lambda _, given, result: self._leave(given, result))

    def _leave(self, given: tuple[Any, ...], result: Any) -> None:
        """The backward pass of what was computed inside is of the same kind."""
        kind = self._inside.pop()
        outside = {x.grad_fn for x in given if isinstance(x, Tensor)}
        waiting: list[Any] = [result.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in outside and "kind" not in node.metadata:
                node.metadata["kind"] = kind
                waiting += [before for before, _ in node.next_functions]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self._wait()
        self.seconds[self._kind(func, result)] += time.perf_counter() - start  # pyright: ignore[reportArgumentType]
        return result

    def _kind(self, operator: Any, result: Any) -> Kind:
        name = operator.name()
        for kind, parts in _BY_NAME:
            if any(part in name for part in parts):
                return kind
        if isinstance(result, Tensor) and result.shape[-1:] == (self._vocab_size,) and result.ndim > 1:
            return "loss"
        if self._inside:
            return self._inside[-1]
        node: Any = torch._C._current_autograd_node()  # pyright: ignore[reportAttributeAccessIssue]
        return "element-wise" if node is None else node.metadata.get("kind", "element-wise")

    def remove(self) -> None:
        """Stop watching the modules."""
        for hook in self._hooks:
            hook.remove()


def profile(config: Config, steps: int) -> Profile:
    """Of so many steps with random text, medians of each kind's shares."""
    check_next_token(config.model)
    train, device = resolve_train(config), choose_device(config.train)
    device.check_memory(training_memory(parameters(config.model).total).total)
    model = Decoder(config.model).to(device.type).train()
    optimizer = make_optimizer(model, train)
    windows = np.random.default_rng(0).integers(0, config.model.vocab_size, (train.rows, train.seq_len + 1))
    separator = 0 if train.document_mask else None
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def step() -> float:
        start = time.perf_counter()
        update(model, optimizer, windows, train, 0, device, separator)
        wait()
        return time.perf_counter() - start

    whole = statistics.median([step() for _ in range(WARM_UP + steps)][WARM_UP:])
    clock, measured = _Clock(model, wait), list[Counter[Kind]]()
    for _ in range(steps):
        clock.seconds = Counter[Kind]()
        with clock:
            step()
        measured.append(clock.seconds)
    clock.remove()
    seconds = {kind: statistics.median(found[kind] for found in measured) for kind in set[Kind]().union(*measured)}
    counting: Counting = "packed" if train.document_mask else "computed"
    bytes_each = torch.finfo(device.dtype).bits // 8
    this = Pass(train.rows, train.seq_len, counting=counting, bytes_each=bytes_each)
    work = {work.kind: work for work in by_kind(training_step(config.model, this))}
    flops, n_bytes = (sum(getattr(w, name) for w in work.values()) for name in ("flops", "n_bytes"))
    total = sum(seconds.values())
    shown: list[Kind] = [kind for kind in KINDS if kind in work or kind in seconds]
    shares = [
        Share(
            kind=kind,
            flops=work[kind].flops / flops if kind in work else 0.0,
            n_bytes=work[kind].n_bytes / n_bytes if kind in work else 0.0,
            time=seconds.get(kind, 0.0) / total,
        )
        for kind in sorted(shown, key=lambda kind: -seconds.get(kind, 0.0))
    ]
    return Profile(
        seconds=total,
        whole_seconds=whole,
        shares=shares,
        device=device.name,
        dtype=str(device.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
    )
