"""The command `archlab cost`."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from archlab.cli.arguments import (
    AtLeastOne,
    ConfigName,
    ConfigOrOverride,
    DeviceName,
    Devices,
    Flag,
    Price,
    SeveralAtLeastOne,
    check_one_answer,
    load_several,
    split_overrides,
)
from archlab.cli.terminal import long_output, print_json, print_table
from archlab.config.core.text import note
from archlab.config.effects import check_effect
from archlab.config.schema import Config
from archlab.config.training import resolve_train, without_teacher
from archlab.errors import Refusals, UserError
from archlab.pricing.budget import divide, plans_as_json, ways
from archlab.pricing.hardware import Hardware, load_hardware
from archlab.pricing.memory import Format
from archlab.pricing.partition import Parallel
from archlab.pricing.pass_time import ideal
from archlab.pricing.summary import Cost, cost, room
from archlab.pricing.training_plan import PLAN_FORMAT
from archlab.report.cost.plan_tables import tables
from archlab.report.cost.tables import OF_MODEL, beyond_limits, of_one, ratios, side_by_side


@long_output
def run(
    config: ConfigName,
    /,
    *more: ConfigOrOverride,
    batch: SeveralAtLeastOne = (),
    context: SeveralAtLeastOne = (),
    source: AtLeastOne | None = None,
    dtype: Format = "bfloat16",
    hardware: DeviceName | None = None,
    devices: Devices | None = None,
    parallel: str | None = None,
    price: Price | None = None,
    html: Path | None = None,
    json: Flag = False,
) -> None:
    """Compute parameters, FLOPs, memory and best-case times of a config, or of several configs side by side.

    No model is built. Training is computed for windows of train.seq_len tokens, and its numbers per token are per token
    of a window. With an encoder, train.objective decides how many tokens the encoder and the decoder read.

    Parameters
    ----------
    config
        A preset, a YAML file, a run folder, a Hugging Face folder or a hub id.
    more
        More configs to compare, and fields to change in all of them, as in model.attention.n_kv_heads=1.
    batch
        Number of sequences that are served together, as in 1,64. Default: 1.
    context
        Tokens per served sequence, as in 8Ki,32Ki. 8Ki is 8,192. Default: train.seq_len.
    source
        Tokens of the source text of each served sequence, for a model with an encoder. Default: as many as --context.
    dtype
        Dtype of the KV cache, the weights and the matrix products.
    hardware
        A device of `archlab list hardware`, for which the shortest possible times are computed.
    devices
        Number of devices to plan a training run for, with steps of train.batch_tokens tokens (default: 2^20).
    parallel
        How devices divide the work: replicate, shard, tensor or pipeline, as in shard=8,tensor=2. Default: all ways.
    price
        Price of a device per hour, in any currency.
    html
        Write a page with tables and charts to this file.
    json
        Print JSON with exact numbers.
    """
    check_one_answer(json, html)
    _, overrides = split_overrides(config, more)
    configs, device, partition, refused = dict[str, Config](), None, None, Refusals()
    with refused.collecting():
        check_effect(overrides, "cost")
        configs = {name: without_teacher(loaded, OF_MODEL) for name, loaded in load_several(config, more).items()}
    with refused.collecting():
        device = None if hardware is None else load_hardware(hardware)
    with refused.collecting():
        partition = None if parallel is None else Parallel.parse(parallel)
    plan_options = {"--devices": devices, "--parallel": parallel, "--price": price}
    if plan_names := [name for name, value in plan_options.items() if value is not None]:
        serving_options = {
            "--batch": batch, "--context": context, "--source": source, "--html": html,
            "--dtype": dtype != PLAN_FORMAT and dtype,
        }  # fmt: skip
        if serving_names := [name for name, value in serving_options.items() if value]:
            refused.add(
                f"{', '.join(serving_names)} cannot be combined with {', '.join(plan_names)}: a training plan "
                f"always uses {PLAN_FORMAT}, sequences of train.seq_len tokens and steps of train.batch_tokens tokens"
            )
        if hardware is None:
            refused.add(f"{plan_names[0]} needs --hardware; `archlab list hardware` shows all devices")
    refused.raise_any()
    if plan_names and device is not None:
        _print_plans(configs, device, devices, partition, price, json=json)
        return
    contexts = context or (min(resolve_train(c).seq_len for c in configs.values()),)
    if device is not None and device.count > 1:
        raise UserError(
            f"--hardware {hardware} means {device.count} devices, but serving is computed for one device; "
            "name one device, or add --devices to plan a training run"
        )
    points = list(product(contexts, batch or (1,)))
    costs = {name: {(c, b): _cost(name, configs[name], b, c, dtype, source) for c, b in points} for name in configs}
    for sentence in beyond_limits(costs):
        note(sentence)
    if json:
        first = costs[config]
        answers = [
            {
                "config": name,
                **numbers.model_dump(mode="json"),
                **_at_best(numbers, device),
                **_to_first(numbers, first[point]),
            }
            for name, by_point in costs.items()
            for point, numbers in by_point.items()
        ]
        print_json(answers if len(answers) > 1 else answers[0])
        return
    if html is not None:
        from archlab.report.cost.page import write_costs
        from archlab.report.drawings.words import title_with

        titles = {name: title_with(name, overrides) for name in configs}
        titled = {titles[name]: loaded for name, loaded in configs.items()}
        by_title = {titles[name]: by_point for name, by_point in costs.items()}
        print(write_costs(titled, by_title, device or load_hardware("h100"), dtype, html, source))
        return
    several = len(costs) > 1 or len(points) > 1
    for table in side_by_side(costs, device) if several else of_one(costs[config][points[0]], device):
        print_table(table.columns, table.rows, right=table.columns[1:])


def _to_first(costs: Cost, first: Cost) -> dict[str, Any]:
    return {} if costs is first else {"ratio_to_the_first": ratios(costs, first)}


def _at_best(costs: Cost, device: Hardware | None) -> dict[str, Any]:
    if device is None:
        return {}
    times = {name: ideal(work, device, costs.dtype, costs.tokens[name]) for name, work in costs.work.items()}
    return {
        "hardware": device.name,
        "room": room(costs, device).model_dump(mode="json"),
        "at_best": {name: time.model_dump(mode="json") for name, time in times.items()},
    }


def _print_plans(
    configs: Mapping[str, Config],
    device: Hardware,
    devices: int | None,
    parallel: Parallel | None,
    price: float | None,
    *,
    json: bool,
) -> None:
    if len(configs) > 1:
        raise UserError(f"a training run is planned for one config; found {len(configs)}")
    if parallel is None:
        partitions = ways(devices or device.count)
    else:
        partitions = [parallel]
        n_devices = devices or (device.count if device.count > 1 else None)
        if n_devices not in (None, parallel.devices):
            raise UserError(f"--parallel {parallel} needs {parallel.devices} devices, but there are {n_devices}")
    (config,) = configs.values()
    plans, refused = divide(config, partitions, device)
    price = price or device.price_per_hour
    if json:
        print_json(plans_as_json(config, plans, refused, device, price))
        return
    for table in tables(config, plans, refused, device, price):
        print_table(table.columns, table.rows, right=table.columns[1:])


def _cost(name: str, config: Config, batch: int, context: int, dtype: Format, source: int | None) -> Cost:
    try:
        return cost(config, batch, context, dtype, source)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
