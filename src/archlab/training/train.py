"""From a config and a folder to a finished run."""

from contextlib import ExitStack, nullcontext
from pathlib import Path

from archlab.allocator import keep_freed_memory
from archlab.config.core.text import collected_notes
from archlab.config.problems import ConfigError, Problem
from archlab.config.rules.parallel_rules import (
    among,
    check_dealt,
    check_divided,
    check_shares,
    decides_by_micro_batch,
)
from archlab.config.schema import Config
from archlab.config.sources import sources
from archlab.config.training import check_next_token, resolve_train
from archlab.data.open import open_training_data
from archlab.errors import UserError
from archlab.pricing.memory import training_memory
from archlab.pricing.params import parameters
from archlab.training.attention_kernels import attention_kernels, products_up_to
from archlab.training.compiling import is_compiled
from archlab.training.device import Device, choose_device, environment, resolve_device_type
from archlab.training.loop import Means, Training
from archlab.training.out_of_memory import out_of_memory_explained
from archlab.training.progress import Callback, Printing
from archlab.training.run_folder import RunFolder, SeenByOthers
from archlab.training.sinks.opened import check_installed, opened
from archlab.training.summary import RunSummary
from archlab.training.world import World, joined

WORTH_REPEATING = 4
"""Passes over a text up to which it teaches about as much as new text would (Muennighoff 2023, arXiv 2305.16264)."""


def train(config: Config, out: str | Path, callback: Callback | None = None, corpus: str | None = None) -> RunSummary:
    """Train in the folder `out`, or go on there from its last checkpoint; a finished run is only read.

    Where torchrun has started several processes, each calls it, and they train one run together.

    `callback` is called while the training goes on; without one, its progress is printed to stderr. Returns how the run
    ended. Raises UserError for a folder that holds another run, for text of another fingerprint than `corpus`, and for
    a step that does not fit into memory; KeyboardInterrupt, after a checkpoint, when the run is asked to stop.
    """
    keep_freed_memory()
    with joined(config.parallel, resolve_device_type(config.train.device, "train.device")) as world:
        device = world.told(lambda: choose_device(config.train))  # `auto` is decided by a measurement
        return _joined(config, device, world, Path(out), callback or Printing(), corpus)


def _joined(
    config: Config, device: Device, world: World, out: Path, callback: Callback, corpus: str | None
) -> RunSummary:
    with collected_notes() as notes:
        means = _means(config, device, world)
    data = means.data
    if corpus not in (None, data.fingerprint):
        raise UserError(f"{config.data.named}: the text has changed since the study began; begin another one")
    if world.told(lambda: data.fingerprint) != data.fingerprint:
        raise UserError(f"{config.data.named}: process {world.rank} has another text than process 0; give all the same")
    folder = RunFolder(out) if world.is_first else SeenByOthers(out)
    callback = callback if world.is_first else Callback()
    known = data.known_tokens
    if config.model.vocab_size > known:
        rows = f"rows from {known:,} on are never used"
        notes.append(f"model.vocab_size {config.model.vocab_size:,}; the data has {known:,} token ids: {rows}")
    for name, passes in data.passes(means.settings.steps * means.settings.rows, means.settings.seq_len).items():
        if passes > WORTH_REPEATING:
            notes.append(
                f"{name} is read {passes:.1f} times; what is repeated more than {WORTH_REPEATING} times teaches "
                "less and less (Muennighoff 2023)"
            )
    with ExitStack() as held:
        world.told(lambda: held.enter_context(folder.locked()))
        how = {"compiled": means.is_compiled, "attention": dict(means.kernels), "processes": world.division}
        env = environment(device) | how | {"corpus": data.fingerprint}
        if data.document_token is not None:
            env["document_token"] = data.document_token
        if decides_by_micro_batch(config.model):
            env["micro_batch_tokens"] = means.settings.micro_batch_tokens
        if code := sources(config):
            env["plugins"] = code
        notes += world.told(lambda: folder.claim(config, env, data.tokenizer))
        if ended := world.told(folder.summary):
            return ended
        callback.on_data(str(data))
        for note in notes:
            callback.on_note(note)
        # What several processes have of a model each is not counted, so that nothing is said of what would fit.
        explained = out_of_memory_explained(config, device) if world.size == 1 else nullcontext()
        copied = opened(folder, config, callback.on_note) if world.is_first else nullcontext()
        with explained, copied:
            return Training(means, folder, callback).run()


def _means(config: Config, device: Device, world: World) -> Means:
    """UserError for what the model, this machine or the text cannot do."""
    settings = among(resolve_train(config), config, world.readers)
    check_next_token(config.model)
    if world.is_first:
        check_installed(settings.log)
    if world.size > 1 and settings.probe_every:
        found = f"{settings.probe_every}; probes are of one process, and there are {world.size}; allowed: null"
        raise ConfigError([Problem("train.probe_every", found)], "the config")
    check_shares(config.model, world.tensor)
    check_dealt(config.model, world.expert)
    check_divided(config, settings.seq_len, world.context)
    # At least: of tables and the head, and of what is no expert, each process of a group has more.
    shards = world.mesh.size(1) * world.mesh.size(2) if world.mesh else 1
    device.check_memory(training_memory(parameters(config.model), settings.optimizer).total // shards)
    with world.in_turn():
        data = open_training_data(config.data, config.model.vocab_size)
    held_out = data.held_out(settings.eval_seq_len, settings.eval_tokens, masked=settings.document_mask)
    compiled = is_compiled(config, settings, device)
    on_cuda, packed = device.type == "cuda", settings.document_mask
    runs = world.row.part(settings.seq_len).runs if world.row else None
    kernels = attention_kernels(
        config.model, settings.seq_len, runs, packed=packed, on_cuda=on_cuda, products_up_to=products_up_to(device)
    )
    return Means(config, settings, device, world, data, held_out, compiled, kernels)
