"""Answers of `archlab cost`: costs of one or several configs, with times on a device, or plans of a training run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Any, overload

from archlab.config.schema import Config
from archlab.config.training import resolve_train, without_teacher
from archlab.displayed import Displayed
from archlab.errors import Refusals, UserError, at, check_at_least
from archlab.exchange.configs import ConfigSource, named_configs
from archlab.pricing.budget import PlanPair, divide, plans_as_json, ways
from archlab.pricing.hardware import Hardware, load_hardware
from archlab.pricing.memory import Format
from archlab.pricing.partition import Parallel
from archlab.pricing.pass_time import ideal
from archlab.pricing.stage import PLAN_FORMAT
from archlab.pricing.summary import Cost, room
from archlab.pricing.summary import cost as cost_of
from archlab.report.cost.plan_tables import tables as plan_tables
from archlab.report.cost.tables import OF_MODEL, Point, of_one, ratios, side_by_side
from archlab.report.text_table import Table


@dataclass(frozen=True, repr=False)
class Costs(Displayed):
    """Costs of one or several configs, and the shortest possible times on a device."""

    by_point: Mapping[str, Mapping[Point, Cost]]
    """Costs of each config by its name, at each context length and batch size."""
    device: Hardware | None
    """Device for which times are computed."""

    @property
    def by_name(self) -> dict[str, Cost]:
        """Cost of each config by its name. Tables show ratios to the first one."""
        return {name: next(iter(at_points.values())) for name, at_points in self.by_point.items()}

    @property
    def data(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The numbers as `archlab cost --json` prints them: a dict, or a list for several configs."""
        first = next(iter(self.by_point.values()))
        answers = [
            {
                "config": name,
                **cost.model_dump(mode="json"),
                **_at_best(cost, self.device),
                **({} if cost is first[point] else {"ratio_to_the_first": ratios(cost, first[point])}),
            }
            for name, at_points in self.by_point.items()
            for point, cost in at_points.items()
        ]
        return answers if len(answers) > 1 else answers[0]

    def tables(self) -> Iterator[Table]:
        """Yield the tables that `archlab cost` prints."""
        costs = [cost for at_points in self.by_point.values() for cost in at_points.values()]
        return side_by_side(self.by_point, self.device) if len(costs) > 1 else of_one(costs[0], self.device)


@dataclass(frozen=True, repr=False)
class Plans(Displayed):
    """Plans of a training run on several devices: one for each way to divide it."""

    config: Config
    by_way: Mapping[Parallel, PlanPair]
    """Plans for each possible way, without and with recomputation of layers."""
    refused: Sequence[str]
    """Reasons why other ways are impossible."""
    device: Hardware
    price: float | None
    """Price of a device per hour. None if it is unknown."""

    @property
    def data(self) -> dict[str, Any]:
        """The plans as `archlab cost --devices N --json` prints them."""
        return plans_as_json(self.config, self.by_way, self.refused, self.device, self.price)

    def tables(self) -> Iterator[Table]:
        """Yield the tables that `archlab cost --devices N` prints."""
        return plan_tables(self.config, self.by_way, self.refused, self.device, self.price)


@dataclass(frozen=True)
class CostRequest:
    """Options of `archlab cost` and of `archlab.cost`."""

    batches: Sequence[int] = ()
    contexts: Sequence[int] = ()
    source: int | None = None
    dtype: Format = "bfloat16"
    hardware: str | Hardware | None = None
    devices: int | None = None
    parallel: str | None = None
    price: float | None = None
    html: bool = False
    """Whether a page is written, which shows no plans."""
    prefix: str = ""
    """Text before the name of an option in messages: `--` on the command line."""

    def answer(self, configs: Mapping[str, Config]) -> Costs | Plans:
        """Return the costs of the configs, or the plans of one config if a plan is requested."""
        device, partition = self.read()
        configs = {name: without_teacher(config, OF_MODEL) for name, config in configs.items()}
        if device is None or not self._planning:
            return self._costs(configs, device)
        return self._plans(configs, device, partition)

    def read(self) -> tuple[Hardware | None, Parallel | None]:
        """Return the device, and the way to divide a training run. Raise one UserError with all mistakes in the
        options."""
        device, partition, refused = None, None, Refusals()
        with refused.collecting():
            device = load_hardware(self.hardware) if isinstance(self.hardware, str) else self.hardware
        with refused.collecting():
            partition = None if self.parallel is None else Parallel.parse(self.parallel)
        serving = self._set(
            batch=self.batches or None, context=self.contexts or None, source=self.source, html=self.html or None,
            dtype=None if self.dtype == PLAN_FORMAT else self.dtype,
        )  # fmt: skip
        planning = self._planning
        if planning and serving:
            refused.add(
                f"{', '.join(serving)} cannot be combined with {', '.join(planning)}: a training plan always uses "
                f"{PLAN_FORMAT}, sequences of train.seq_len tokens and steps of train.batch_tokens tokens"
            )
        if planning and self.hardware is None:
            refused.add(f"{planning[0]} needs {self.prefix}hardware; `archlab list hardware` shows all devices")
        n_devices = self.devices or (device.count if device and device.count > 1 else None)
        if partition is not None and n_devices not in (None, partition.devices):
            needed = f"{partition.devices} devices, but there are {n_devices}"
            refused.add(f"{self.prefix}parallel {partition} needs {needed}")
        refused.raise_any()
        return device, partition

    @property
    def _planning(self) -> list[str]:
        """Names of the options that ask for plans."""
        return self._set(devices=self.devices, parallel=self.parallel, price=self.price)

    def _set(self, **options: object) -> list[str]:
        return [f"{self.prefix}{name}" for name, value in options.items() if value is not None]

    def _costs(self, configs: Mapping[str, Config], device: Hardware | None) -> Costs:
        if device is not None and device.count > 1:
            name = self.hardware if isinstance(self.hardware, str) else device.name
            raise UserError(
                f"{self.prefix}hardware {name} means {device.count} devices, but serving is computed for one device; "
                f"name one device, or add {self.prefix}devices to plan a training run"
            )
        contexts = self.contexts or (min(resolve_train(config).seq_len for config in configs.values()),)
        points, by_point = list(product(contexts, self.batches or (1,))), dict[str, dict[Point, Cost]]()
        for name, config in configs.items():
            with at(name):
                by_point[name] = {(c, b): cost_of(config, b, c, self.dtype, self.source) for c, b in points}
        return Costs(by_point, device)

    def _plans(self, configs: Mapping[str, Config], device: Hardware, partition: Parallel | None) -> Plans:
        if len(configs) > 1:
            raise UserError(f"a training run is planned for one config; found {len(configs)}")
        partitions = ways(self.devices or device.count) if partition is None else [partition]
        (config,) = configs.values()
        by_way, refused = divide(config, partitions, device)
        return Plans(config, by_way, refused, device, self.price or device.price_per_hour)


def _at_best(costs: Cost, device: Hardware | None) -> dict[str, Any]:
    if device is None:
        return {}
    times = {name: ideal(work, device, costs.dtype, costs.tokens[name]) for name, work in costs.work.items()}
    return {
        "hardware": device.name,
        "room": room(costs, device).model_dump(mode="json"),
        "at_best": {name: time.model_dump(mode="json") for name, time in times.items()},
    }


@overload
def cost(
    config: ConfigSource,
    /,
    *,
    batch: int | None = None,
    context: int | None = None,
    dtype: Format = "bfloat16",
    source: int | None = None,
) -> Cost: ...


@overload
def cost(
    config: ConfigSource,
    other: ConfigSource,
    /,
    *more: ConfigSource,
    batch: int | None = None,
    context: int | None = None,
    dtype: Format = "bfloat16",
    source: int | None = None,
    names: Sequence[str] = (),
    hardware: str | Hardware | None = None,
) -> Costs: ...


@overload
def cost(
    config: ConfigSource,
    /,
    *,
    batch: int | None = None,
    context: int | None = None,
    dtype: Format = "bfloat16",
    source: int | None = None,
    hardware: str | Hardware,
) -> Costs: ...


@overload
def cost(
    config: ConfigSource,
    /,
    *,
    hardware: str | Hardware,
    devices: int,
    parallel: str | None = None,
    price: float | None = None,
) -> Plans: ...


@overload
def cost(config: ConfigSource, /, *, hardware: str | Hardware, parallel: str, price: float | None = None) -> Plans: ...


def cost(
    config: ConfigSource,
    /,
    *more: ConfigSource,
    batch: int | None = None,
    context: int | None = None,
    dtype: Format = "bfloat16",
    source: int | None = None,
    names: Sequence[str] = (),
    hardware: str | Hardware | None = None,
    devices: int | None = None,
    parallel: str | None = None,
    price: float | None = None,
) -> Cost | Costs | Plans:
    """Compute parameters, FLOPs and bytes of a config, or of several configs to compare them. No model is built.

    The passes and weights of a teacher (`train.teacher`) are not counted.

    - `config`, `more`: configs, or their names, as for `archlab.load_config`.
    - `batch`: number of sequences that are served in parallel. None means 1.
    - `context`: number of tokens of each sequence. None means the smallest training sequence length of the configs.
    - `dtype`: dtype of the cache and the weights in serving, and of matrix products in training.
    - `source`: number of source tokens that an encoder reads. None means `context`.
    - `names`: names of the configs in a comparison. By default, they are those by which the configs are given, or else
      `config 1`, `config 2` and so on.
    - `hardware`: device for which the shortest possible times are computed, as for `archlab.load_hardware`.

    Three further arguments ask for plans of a training run on several devices, with steps of `train.batch_tokens`
    tokens. They need `hardware`, and one config.

    - `devices`: number of devices. None means as many as `hardware` or `parallel` name.
    - `parallel`: way to divide the run, as in `shard=8,tensor=2`. None means all ways that use one dimension.
    - `price`: price of a device per hour, in any currency.

    The result of one config is a `Cost`. That of several configs, or with `hardware`, is a `Costs`, whose `by_name`
    holds the cost of each config, and whose `data` also contains the times. The result with plans is a `Plans`, whose
    `data` contains them.

    Raise UserError if a model has learned positions and one of these numbers exceeds their table, or if `source` is
    given for a model without an encoder. Raise it also if names are equal, or if no plan is possible.

    >>> archlab.cost("llama-3-8b", context=8192).kv_cache_bytes
    1073741824
    >>> costs = archlab.cost("llama-3-8b", "gemma-2-9b")
    >>> {name: cost.parameters.total for name, cost in costs.by_name.items()}
    {'llama-3-8b': 8030261248, 'gemma-2-9b': 9241705984}
    >>> archlab.cost("llama-3-8b", hardware="h100").data["room"]["fits"]
    True
    >>> plans = archlab.cost("llama-3-8b", hardware="h100", parallel="shard=64", price=2)
    >>> [f"{plan['plain']['micro_batch']:,}" for plan in plans.data["plans"]]
    ['1']
    """
    check_at_least(1, batch=batch, context=context, source=source, devices=devices)
    if price is not None and not 0 < price < inf:
        raise UserError(f"price: {price}; allowed: a finite number above 0")
    request = CostRequest(
        () if batch is None else (batch,), () if context is None else (context,), source, dtype, hardware, devices,
        parallel, price,
    )  # fmt: skip
    answer = request.answer(named_configs((config, *more), names))
    if isinstance(answer, Costs) and not (more or names or hardware):
        return next(iter(answer.by_name.values()))
    return answer
