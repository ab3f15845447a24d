"""`archlab cost`."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from archlab.cli.arguments import Devices, Flag, Price, SeveralAtLeastOne, check_one_answer, load_several
from archlab.cli.terminal import long_output, print_json, print_table
from archlab.config.core.text import note
from archlab.config.schema import Config
from archlab.config.training import resolve_train
from archlab.errors import UserError
from archlab.pricing.budget import divide, plans_as_json, ways
from archlab.pricing.hardware import Hardware, load_hardware
from archlab.pricing.memory import Format
from archlab.pricing.partition import Parallel
from archlab.pricing.pass_time import ideal
from archlab.pricing.summary import Cost, cost, room
from archlab.pricing.training_plan import PLAN_FORMAT
from archlab.report.cost.plan_tables import tables
from archlab.report.cost.tables import beyond_limits, of_one, ratios, side_by_side


@long_output
def run(
    config: str,
    /,
    *more: str,
    batch: SeveralAtLeastOne = (),
    context: SeveralAtLeastOne = (),
    dtype: Format = "bfloat16",
    hardware: str | None = None,
    devices: Devices | None = None,
    parallel: str | None = None,
    price: Price | None = None,
    html: Path | None = None,
    json: Flag = False,
) -> None:
    """Count parameters, FLOPs and bytes of a config from its resolved layers, or of several side by side.

    Serving is counted at --context, training in windows of train.seq_len.

    Parameters
    ----------
    config
        A preset's name, a YAML file, a run folder, a Hugging Face folder or a hub id.
    more
        Further configs to compare with it, and fields to change in all of them, as in model.attention.n_kv_heads=1.
    batch
        Sequences whose KV cache is held; several between commas, as in 1,64. Left out: 1.
    context
        Tokens per served sequence, as in 8Ki or 8Ki,32Ki. 8Ki is 8,192; 8K is 8,000. Left out: as many as a training
        window has (of several configs, the shortest).
    dtype
        Of the KV cache and of the weights as served, and of training's products. Run folders are float32.
    hardware
        A device from `archlab list hardware`: how long passes take on it at best, and what limits them.
    devices
        Train on so many devices: what fits, what is sent, how long it takes, in steps of train.batch_tokens (left out:
        1M tokens). Without --parallel, each way alone.
    parallel
        How they divide the work, as in shard=8,tensor=2; of data, shard, tensor and pipeline.
    price
        Of a device and hour, in any currency: what a training costs, without --devices on one device.
    html
        Write a page with tables and pictures to this file instead; without --hardware, for an H100.
    json
        JSON instead, exact: an object, or a list of them where several are asked for.
    """
    check_one_answer(json, html)
    configs = load_several(config, more)
    contexts = context or (min(resolve_train(c).seq_len for c in configs.values()),)
    device = None if hardware is None else load_hardware(hardware)
    of_training = {"--devices": devices, "--parallel": parallel, "--price": price}
    if asked := [name for name, value in of_training.items() if value is not None]:
        of_serving = {"--batch": batch, "--context": context, "--html": html, "--dtype": dtype != PLAN_FORMAT and dtype}
        if given := [name for name, value in of_serving.items() if value]:
            raise UserError(
                f"{', '.join(given)}: not with {', '.join(asked)}, which plan a training in {PLAN_FORMAT}; "
                "train.seq_len and train.batch_tokens decide its windows and batches"
            )
        if device is None:
            raise UserError(f"{asked[0]} needs --hardware; `archlab list hardware` shows all")
        _print_plans(configs, device, devices, parallel, price, json=json)
        return
    if device is not None and device.count > 1:
        raise UserError(
            f"--hardware {hardware}: serving is counted on one device; allowed: one, or --devices for training"
        )
    points = list(product(contexts, batch or (1,)))
    found = {name: {(c, b): _cost(name, configs[name], b, c, dtype) for c, b in points} for name in configs}
    for sentence in beyond_limits(found):
        note(sentence)
    if json:
        first = found[config]
        all_of_them = [
            {"config": name, **one.model_dump(mode="json"), **_at_best(one, device), **_to_first(one, first[point])}
            for name, at in found.items()
            for point, one in at.items()
        ]
        print_json(all_of_them if len(all_of_them) > 1 else all_of_them[0])
        return
    if html is not None:
        from archlab.report.cost.page import write_costs

        print(write_costs(configs, found, device or load_hardware("h100"), dtype, html))
        return
    several = len(found) > 1 or len(points) > 1
    for table in side_by_side(found, device) if several else of_one(found[config][points[0]], device):
        print_table(table.columns, table.rows, right=table.columns[1:])


def _to_first(found: Cost, first: Cost) -> dict[str, Any]:
    return {} if found is first else {"ratio_to_the_first": ratios(found, first)}


def _at_best(found: Cost, device: Hardware | None) -> dict[str, Any]:
    if device is None:
        return {}
    passes = {name: ideal(work, device, found.dtype, found.tokens[name]) for name, work in found.work.items()}
    return {
        "hardware": device.name,
        "room": room(found, device).model_dump(mode="json"),
        "at_best": {name: one.model_dump(mode="json") for name, one in passes.items()},
    }


def _print_plans(
    configs: Mapping[str, Config],
    device: Hardware,
    devices: int | None,
    parallel: str | None,
    price: float | None,
    *,
    json: bool,
) -> None:
    if len(configs) > 1:
        raise UserError(f"{len(configs)} configs: training on several devices is planned for one")
    if parallel is None:
        tried = ways(devices or device.count)
    else:
        tried = [Parallel.parse(parallel)]
        n = devices or (device.count if device.count > 1 else None)
        if n not in (None, tried[0].devices):
            raise UserError(f"--parallel {parallel} is {tried[0].devices} devices, and {n} were asked for")
    (config,) = configs.values()
    found, refused = divide(config, tried, device)
    price = price or device.price_per_hour
    if json:
        print_json(plans_as_json(config, found, refused, device, price))
        return
    for table in tables(config, found, refused, device, price):
        print_table(table.columns, table.rows, right=table.columns[1:])


def _cost(name: str, config: Config, batch: int, context: int, dtype: Format) -> Cost:
    try:
        return cost(config, batch, context, dtype)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
