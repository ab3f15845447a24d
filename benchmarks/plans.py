"""Compare the plans of `archlab cost --parallel` with what torch allocates and sends, for up to 1,024 ranks.

Usage:
    python benchmarks/plans.py
    python benchmarks/plans.py --check    # exit code 1 if a ratio is a tenth below the record.

No large machine is needed. torch's fake process group has as many ranks as a plan but only one process, and fake
tensors have shapes but no values. archlab's trainer builds a model, shards it and makes two updates of it on these.
A dispatch mode sees every operation: it counts the bytes of collectives, and adds up the tensors in memory.

A GPU computes attention in bfloat16 and logits in larger pieces than a CPU. The models here do the same, because a
plan is for GPUs.

A ratio is the smaller of plan and measurement divided by the larger: 1 is exact. The bytes of collectives must be
exact, except for padding: torch pads a tensor if the ranks cannot divide any of its axes evenly.
"""

import os
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from rounds import finish, options, side_by_side
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.distributed_c10d import GroupName
from torch.distributed.tensor import DTensor, _collective_utils
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from archlab.config import pieces
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.data.objectives import random_batch
from archlab.data.training_data import Windows
from archlab.exchange.configs import load_config
from archlab.model import kernels
from archlab.model.torch_private import DispatchMode
from archlab.pricing.hardware import load_hardware
from archlab.pricing.partition import Parallel
from archlab.pricing.training_plan import TrainingPlan, plan_training
from archlab.training.compiling import recompute_layers
from archlab.training.device import Device
from archlab.training.optim import make_optimizer
from archlab.training.shard import sharded
from archlab.training.step import update
from archlab.training.world import joined

SEQ_LEN, MICRO_BATCHES = 2048, 2

DENSE = ("llama-3.2-1b", "model.n_layers=4", "model.head.tied=false")
MODELS: dict[str, tuple[str, ...]] = {
    "dense": DENSE,
    "mixture of experts": ("olmoe-1b-7b", "model.n_layers=3"),
    "hybrid": (
        "llama-3.2-1b", "model.n_layers=4", "model.layers={recurrent: {attention: none, mixer: {kind: mamba2, "
        "n_heads: 64, head_dim: 64, d_state: 128}}, full: {}, pattern: [recurrent, recurrent, recurrent, full]}",
    ),
    "dense, Muon": (*DENSE, "train.optimizer={kind: muon, dtype: bfloat16}"),
    "mixture of experts, Muon": ("olmoe-1b-7b", "model.n_layers=3", "train.optimizer={kind: muon, dtype: bfloat16}"),
}  # fmt: skip
"""Presets with fewer layers. Their widths are whole."""

WAYS = (
    Parallel(shard=8),
    Parallel(replicate=8),
    Parallel(replicate=2, shard=32),
    Parallel(replicate=4, shard=64),
    Parallel(shard=1024),
    Parallel(replicate=16, shard=64),
)

NOT_COMPARED = {
    "tensor": "the plan is that of Megatron, which also divides the embedding, the head and the residual stream",
    "pipeline": "archlab's trainer has no pipeline",
    "expert, context": "archlab cost does not plan them",
    "sums of the loss and of the gradient's norm": "a plan leaves out these few numbers, `other` in the results",
    "padding": "the shapes of tensors are not known to a plan; in these cases it is at most 0.005% of the bytes",
    "time": "fake tensors take none",
}
"""Numbers that the record does not compare, with the reason."""


COLLECTIVES = ("c10d", "_c10d_functional", "_dtensor")
"""Namespaces of torch's operations that send data."""


class Allocations(DispatchMode):
    """Bytes of all tensors in memory, and their peak. The scalars that the trainer reads from fake tensors are 1."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = dict[int, int]()
        self.now = self.peak = 0
        self.collectives = list[tuple[str, int, int]]()
        """Operation, number of ranks in its group, and bytes of its largest tensor."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor then calls the operations on its local tensors
        if op is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 1
        out = op(*args, **(kwargs or {}))
        if op.namespace in COLLECTIVES and op is not torch.ops._c10d_functional.wait_tensor.default:
            self._count(op, args, out)
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                self._holds(x.untyped_storage())
        return out

    def _count(self, op: Any, args: Any, out: Any) -> None:
        # The group is an argument: itself, or its name.
        named = [_resolve_process_group(GroupName(x)) for x in args if isinstance(x, str) and x.isdecimal()]
        groups = [dist.ProcessGroup.unbox(x) for x in args if isinstance(x, torch.ScriptObject) and "Group" in str(x)]
        (group,) = (*groups, *named)
        largest = max((x.nbytes for x in tree_leaves((args, out)) if isinstance(x, Tensor)), default=0)
        self.collectives.append((op.name(), group.size(), largest))

    def _holds(self, storage: torch.UntypedStorage) -> None:
        key, n_bytes = storage._cdata, storage.nbytes()
        if key not in self._bytes:
            weakref.finalize(storage, self._set, key, None)
        self._set(key, n_bytes)

    def _set(self, key: int, n_bytes: int | None) -> None:
        self.now += (n_bytes or 0) - self._bytes.pop(key, 0)
        if n_bytes is not None:
            self._bytes[key] = n_bytes
        self.peak = max(self.peak, self.now)

    def __enter__(self) -> "Allocations":
        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            self._holds(storage)
            return result

        self._patch = mock.patch.object(torch.UntypedStorage, "resize_", resized)
        self._patch.start()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._patch.stop()


class Case(NamedTuple):
    """A model and a way to divide its training."""

    model: str
    way: Parallel
    recompute: bool

    def __str__(self) -> str:
        return f"{self.model}, {self.way}" + ", recomputing" * self.recompute

    @property
    def config(self) -> Config:
        rows = MICRO_BATCHES * self.way.devices
        return load_config(
            *MODELS[self.model], f"parallel={{replicate: {self.way.replicate}, shard: {self.way.shard}}}",
            f"train={{seq_len: {SEQ_LEN}, batch_tokens: {rows * SEQ_LEN}, micro_batch_tokens: {SEQ_LEN}}}",
            "train.dtype=bfloat16", "train.device=cpu", "train.compile=false",
            f"train.recompute={str(self.recompute).lower()}",
        )  # fmt: skip


CASES = [Case(name, way, recompute=False) for name, way in product(MODELS, WAYS)] + [
    Case(name, Parallel(shard=64), recompute=True) for name in MODELS
]


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Choose the dtype of attention, the size of the loss's pieces and the collectives of DTensors as on a GPU.

    torch gathers a whole tensor on a CPU where a GPU exchanges parts of it, because gloo lacks this exchange.
    """
    at_once = {**pieces.LOGITS_AT_ONCE, "cpu": pieces.LOGITS_AT_ONCE["cuda"]}
    with (
        mock.patch.object(pieces, "LOGITS_AT_ONCE", at_once),
        mock.patch.object(kernels, "_is_better_wide", lambda _, bias: bias is not None),
        mock.patch.object(_collective_utils, "local_tensor_mode", return_value="not a CPU"),
    ):
        yield


def dry_run(case: Case) -> dict[str, Any]:
    """Return the peak memory of the second update in bytes, and what rank 0 sends in it."""
    n, config = case.way.devices, case.config
    os.environ |= {"WORLD_SIZE": str(n), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(n)}
    dist.init_process_group("fake", rank=0, world_size=n, store=FakeStore())
    train, device, seen = resolve_train(config), Device("cpu", torch.bfloat16), Allocations()
    batch = random_batch(config, Windows(np.zeros((train.rows, SEQ_LEN + 1), np.int64)))
    with joined(config.parallel, "cpu") as world, as_on_a_gpu(), FakeTensorMode(allow_non_fake_inputs=True), seen:
        model = sharded(config.model, train, "cpu", world)
        if case.recompute:
            recompute_layers(model)
        optimizer = make_optimizer(model, train)
        for _ in range(2):  # the first update allocates the optimizer's state
            seen.peak, seen.collectives = seen.now, []
            update(model, optimizer, batch, train, 0, device, world)
    dist.destroy_process_group()
    return {"memory": seen.peak, "kept": seen.now, **sent(seen.collectives, case.way)}


def sent(collectives: list[tuple[str, int, int]], way: Parallel) -> dict[str, Any]:
    """Return the bytes that a device sends in ring algorithms, by dimension, and the calls of each collective."""
    n_bytes, calls = Counter[str](shard=0, replicate=0, other=0), Counter[str]()
    for name, size, largest in collectives:
        calls[f"{name} of {size} ranks, {largest} bytes"] += 1
        if "all_reduce" in name or "allreduce" in name:
            kind = "replicate" if size == way.replicate and largest > 10_000 else "other"
            n_bytes[kind] += 2 * (size - 1) * largest // size
        else:
            n_bytes["shard"] += (size - 1) * largest // size
    return {"sent": n_bytes, "calls": calls}


def planned(case: Case) -> TrainingPlan:
    return plan_training(case.config, case.way, load_hardware("h100"), recompute=case.recompute)


def exactness(plan: float, measurement: float) -> float:
    """Return the smaller number divided by the larger; 1 if both are 0."""
    return min(plan, measurement) / max(plan, measurement, 1) if plan or measurement else 1.0


def main() -> int:
    chosen = options(__doc__, rounds=None).parse_args()
    ratios, results = dict[str, float](), {}
    print(f"{'':60}{'plan':>14}{'torch':>14}")
    for case in CASES:
        (found,), plan = side_by_side(1, dry_run, [case]), planned(case)
        rows = {"memory": (plan.total_memory, found["memory"])}
        ways = [way for way in ("shard", "replicate") if getattr(case.way, way) > 1]
        rows |= {f"sent, {way}": (plan.sent[way], found["sent"][way]) for way in ways}
        for row, (before, after) in rows.items():
            label = f"{case}: {row}"
            print(f"{label:60}{before / 2**20:10,.1f} MiB{after / 2**20:10,.1f} MiB", flush=True)
            ratios[label] = exactness(before, after)
        results[str(case)] = {"plan": {"memory": plan.memory, "sent": plan.sent}, "torch": found}
    return finish("plans", ratios, {"results": results, "not_compared": NOT_COMPARED}, check=chosen.check)


if __name__ == "__main__":
    sys.exit(main())
