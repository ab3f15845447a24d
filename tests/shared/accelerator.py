"""A fake CUDA device: CPU tensors that claim to be on `cuda` and refuse operations with tensors on the CPU.

Without a GPU it can show one thing: code for a GPU leaves nothing behind on the CPU.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from archlab.model import grouped

CUDA = torch.device("cuda", 0)
BRACKETS = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_, torch.ops.aten._index_put_impl_)


class FakeCuda(Tensor):
    """A tensor on the fake device; `content` is the CPU tensor with its values."""

    content: Tensor

    @staticmethod
    def __new__(cls, content: Tensor) -> "FakeCuda":
        bare = torch.empty_strided(content.shape, content.stride(), dtype=content.dtype, device="meta")
        self = Tensor._make_subclass(cls, bare, False, dispatch_device=True, device_for_backend_keys=bare.device)
        self.content = content
        return self

    @property
    def device(self) -> torch.device:
        return CUDA

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def is_meta(self) -> bool:
        return False

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, data: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.tensor(data, dtype=self.dtype, device=CUDA)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, op: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return run(op, args, dict(kwargs or {}))


class Numbered(TorchFunctionMode):
    """Turn the device `cuda` into `cuda:0` without asking a driver for the current device, and pin memory likewise."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned = list[Tensor]()

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is Tensor.pin_memory:
            self.pinned.append(args[0])
            return args[0]
        kwargs = dict(kwargs or {})
        is_pinned = kwargs.pop("pin_memory", False)
        result = function(*tree_map(numbered, args), **tree_map(numbered, kwargs))
        if is_pinned:
            self.pinned.append(result)
        return result


def numbered(x: Any) -> Any:
    return CUDA if isinstance(x, str | torch.device) and str(x) == "cuda" else x


WAITING = tuple(getattr(torch.ops.aten, name) for name in ("_local_scalar_dense", "nonzero", "masked_select", "equal"))
GROUPED = (torch.ops.archlab.grouped_linear, torch.ops.archlab.grouped_outer)
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Accelerator(TorchDispatchMode):
    """A context in which `cuda` exists for new tensors, moved tensors and models.

    `waits` names the operations at which Python would wait until a GPU has computed everything before them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits = list[str]()

    def __enter__(self) -> "Accelerator":
        # torch's own FakeTensorMode does the same.
        torch._C._ensureCUDADeviceGuardSet()
        self.lifted, self.lazy_init = torch._C._only_lift_cpu_tensors(), torch.cuda._lazy_init
        torch._C._set_only_lift_cpu_tensors(True)
        torch.cuda._lazy_init = lambda: None
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        self.numbered = Numbered()
        self.numbered.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self.numbered.__exit__(*raised)
        torch._C._set_only_lift_cpu_tensors(self.lifted)
        torch.cuda._lazy_init = self.lazy_init
        torch.__future__.set_overwrite_module_params_on_conversion(False)

    def __torch_dispatch__(
        self, op: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self._waits(op, args, kwargs or {}):
            self.waits.append(op.name())
        return run(op, args, dict(kwargs or {}))

    def _waits(self, op: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        if op in COPIES:
            is_there = isinstance(source := tensors[-1], FakeCuda)
            host, goes_there = source, is_there
            if op is torch.ops.aten.copy_.default:
                host, goes_there = args[0] if is_there else source, isinstance(args[0], FakeCuda)
            elif kwargs.get("device") is not None:
                goes_there = torch.device(kwargs["device"]).type != "cpu"
            is_direct = (kwargs.get("non_blocking") or args[2:] == (True,)) and any(
                host is x for x in self.numbered.pinned
            )
            return is_there != goes_there and not is_direct
        by_mask = op.overloadpacket in BRACKETS and any(x.dtype is torch.bool for x in tensors[1:])
        if op.overloadpacket in GROUPED:
            x, y, ends = tensors
            return isinstance(ends, FakeCuda) and not grouped._fits_kernel(x, y)
        return any(isinstance(x, FakeCuda) for x in tensors) and (by_mask or op.overloadpacket in WAITING)


def find_gpu(monkeypatch: pytest.MonkeyPatch, capability: int = 9, shared_memory: int = 227) -> None:
    """Let torch find a GPU of this compute capability, with this shared memory per block in KiB (H100: 227)."""
    found = SimpleNamespace(major=capability, shared_memory_per_block_optin=1024 * shared_memory)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)


def run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the contents of its tensors. Raise RuntimeError if it mixes devices."""
    if op is torch.ops.prim.device.default:
        return torch.device("meta")  # for torch's C++ code, which does not know `cuda` in a CPU build
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    on_cuda = any(isinstance(x, FakeCuda) for x in tensors)
    moves = op in COPIES
    # torch allows numbers on the CPU, and indices in brackets. A loop over groups reads their ends there.
    on_cpu = [x for x in tensors if not isinstance(x, FakeCuda) and x.ndim]
    if on_cuda and on_cpu and not moves and op.overloadpacket not in BRACKETS + GROUPED:
        raise RuntimeError(f"{op}: tensors on cuda and on the cpu: {[x.shape for x in on_cpu]}")
    if (wanted := kwargs.get("device")) is not None:
        on_cuda = torch.device(wanted).type != "cpu"
        kwargs["device"] = "cpu"
    out = op(*tree_map(content_of, args), **tree_map(content_of, kwargs))
    if moves and op is torch.ops.aten.copy_.default:
        return args[0]
    if on_cuda:
        return tree_map(lambda x: FakeCuda(x) if isinstance(x, Tensor) else x, out)
    return out


def content_of(x: Any) -> Any:
    return x.content if isinstance(x, FakeCuda) else x
