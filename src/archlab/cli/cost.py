"""The command `archlab cost`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

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
from archlab.config.training import without_teacher
from archlab.errors import Refusals
from archlab.pricing.hardware import load_hardware
from archlab.pricing.memory import Format
from archlab.report.cost.answer import CostRequest, Costs
from archlab.report.cost.tables import OF_MODEL, beyond_limits


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
    request = CostRequest(
        batch, context, source, dtype, hardware, devices, parallel, price, html=html is not None, prefix="--"
    )
    configs, refused = dict[str, Config](), Refusals()
    with refused.collecting():
        check_effect(overrides, "cost")
        configs = load_several(config, more)
    with refused.collecting():
        request.read()
    refused.raise_any()
    answer = request.answer(configs)
    if isinstance(answer, Costs):
        for sentence in beyond_limits(answer.by_point):
            note(sentence)
        if html is not None:
            print(_write_page(answer, configs, overrides, html, source))
            return
    if json:
        print_json(answer.data)
        return
    for table in answer.tables():
        print_table(table.columns, table.rows, right=table.columns[1:])


def _write_page(
    costs: Costs, configs: Mapping[str, Config], overrides: Sequence[str], path: Path, source: int | None
) -> Path:
    from archlab.report.cost.page import write_costs
    from archlab.report.drawings.words import title_with

    titles = {name: title_with(name, overrides) for name in configs}
    titled = {titles[name]: without_teacher(loaded, OF_MODEL) for name, loaded in configs.items()}
    by_title = {titles[name]: at_points for name, at_points in costs.by_point.items()}
    dtype = next(iter(costs.by_name.values())).dtype
    return write_costs(titled, by_title, costs.device or load_hardware("h100"), dtype, path, source)
