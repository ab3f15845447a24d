"""Cost of one config, or of several configs at the same context and batch size."""

from collections.abc import Sequence
from typing import overload

from archlab.config.core.base import Base
from archlab.config.schema import Config, named_configs
from archlab.config.training import resolve_train
from archlab.displayed import Displayed
from archlab.pricing import summary
from archlab.pricing.memory import Format
from archlab.pricing.summary import Cost


class Costs(Displayed, Base):
    """Costs of several configs at the same context and batch size."""

    by_name: dict[str, Cost]
    """Cost of each config by its name. Tables show ratios to the first one."""


@overload
def cost(
    config: Config,
    /,
    *,
    batch: int = 1,
    context: int | None = None,
    dtype: Format = "bfloat16",
    source: int | None = None,
) -> Cost: ...


@overload
def cost(
    config: Config,
    other: Config,
    /,
    *more: Config,
    batch: int = 1,
    context: int | None = None,
    dtype: Format = "bfloat16",
    source: int | None = None,
    names: Sequence[str] = (),
) -> Costs: ...


def cost(
    config: Config,
    /,
    *more: Config,
    batch: int = 1,
    context: int | None = None,
    dtype: Format = "bfloat16",
    source: int | None = None,
    names: Sequence[str] = (),
) -> Cost | Costs:
    """Compute parameters, FLOPs and bytes of a config, or of several configs to compare them. No model is built.

    The passes and weights of a teacher (`train.teacher`) are not counted.

    - `batch`: number of sequences that are served in parallel.
    - `context`: number of tokens of each sequence. None means the smallest training sequence length of the configs.
    - `dtype`: dtype of the cache and the weights in serving, and of matrix products in training.
    - `source`: number of source tokens that an encoder reads. None means `context`.
    - `names`: names of the configs in a comparison. By default, they are `config 1`, `config 2` and so on.

    Raise UserError if a model has learned positions and one of these numbers exceeds their table, or if `source` is
    given for a model without an encoder. Names must be different.

    >>> llama = archlab.load_config("llama-3-8b")
    >>> archlab.cost(llama, context=8192).kv_cache_bytes
    1073741824
    >>> costs = archlab.cost(llama, archlab.load_config("gemma-2-9b"), names=["Llama 3", "Gemma 2"])
    >>> {name: cost.parameters.total for name, cost in costs.by_name.items()}
    {'Llama 3': 8030261248, 'Gemma 2': 9241705984}
    """
    configs = named_configs((config, *more), names)
    if not more and not names:
        return summary.cost(config, batch, context, dtype, source)
    context = context or min(resolve_train(each).seq_len for each in configs.values())
    return Costs(by_name={name: summary.cost(each, batch, context, dtype, source) for name, each in configs.items()})
