"""Train a run: resolve settings, check them, open the data, then run the loop (`loop.py`)."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from archlab.config.core.text import collected_notes
from archlab.config.schema import Config
from archlab.config.sources import sources
from archlab.config.training import tokens_read
from archlab.data.chat_data import ChatData
from archlab.data.objectives import Batches
from archlab.data.open import open_training_data
from archlab.data.pair_data import PairData
from archlab.errors import UserError
from archlab.exchange.configs import ConfigSource, config_of
from archlab.hf.imported import imported
from archlab.machine import keep_freed_memory
from archlab.training.attention_kernels import SHORT, attention_kernels, products_up_to, slow_attention
from archlab.training.callback import Callback, Printing
from archlab.training.checkpoint import has_checkpoint
from archlab.training.checks import (
    check_data_can_be_divided,
    check_run,
    loss_depends_on_micro_batches,
    settings_per_process,
)
from archlab.training.compiling import is_compiled
from archlab.training.device import (
    Device,
    choose_device,
    deterministic_algorithms,
    environment,
    resolve_device_type,
)
from archlab.training.initial_values import initial_of
from archlab.training.loop import RunSetup, Training
from archlab.training.out_of_memory import out_of_memory_explained
from archlab.training.run_folder import ReadOnlyRunFolder, RunFolder
from archlab.training.sinks import opened
from archlab.training.summary import RunSummary
from archlab.training.teacher_weights import bytes_of, check_teacher, open_teacher
from archlab.training.world import World, joined

WORTH_REPEATING = 4
"""Number of passes over a text up to which repeated text teaches about as much as new text.

Source: Muennighoff 2023, arXiv 2305.16264.
"""


def train(
    config: ConfigSource, out: str | Path, callback: Callback | None = None, corpus: str | None = None
) -> RunSummary:
    """Train a run in the folder `out`, or continue it from its last checkpoint. Return the run's summary.

    If the run is finished, return its summary without training. Under torchrun, call this function in every process;
    together they train one run. Training calls the methods of `callback`, an instance of a subclass of
    `archlab.Callback`; without a callback, progress is printed to stderr. `corpus` is the fingerprint that the text
    must have; None accepts any text.

    Raise UserError if the folder contains another run, the text has another fingerprint, or a step does not fit into
    memory. On Ctrl-C or SIGTERM, save a checkpoint and raise KeyboardInterrupt.

    >>> run = archlab.train(archlab.load_config("mine.yaml", "train.lr=2e-3"), out="runs/b")
    >>> run.status, run.tokens
    ('finished', 640)
    """
    config = config_of(config)
    keep_freed_memory()
    with (
        deterministic_algorithms(config.train),
        joined(config.parallel, resolve_device_type(config.train.device, "train.device")) as world,
    ):
        callback = (callback or Printing()) if world.is_first else Callback()
        folder = RunFolder(Path(out)) if world.is_first else ReadOnlyRunFolder(Path(out))
        # In a new run, `auto` depends on a measurement, so only the first process decides.
        device = world.broadcast_from_first(lambda: choose_device(config.train, folder.environment().get("dtype")))
        with collected_notes() as notes:
            began = folder.environment().get("attention") if has_checkpoint(folder.checkpoints) else None
            setup = _set_up(config, device, world, has_checkpoint(folder.checkpoints), began)
        _check_text(setup, corpus)
        notes += _notes(setup)
        return _run(setup, folder, callback, notes)


def _set_up(config: Config, device: Device, world: World, has_begun: bool, began: Mapping[str, int] | None) -> RunSetup:
    """Return everything that training needs. `began` are the attention kernels with which a run began that now
    continues."""
    settings = settings_per_process(world.readers, config)
    check_run(config, settings, device, world)
    compiled = is_compiled(config, settings, device)
    with world.in_turn():
        data = open_training_data(config.data, config.model.vocab_size)
        teacher = open_teacher(config)
    batches = Batches.of(config, data)
    batches.check(settings.seq_len)
    check_data_can_be_divided(data, world.context)
    if teacher:
        check_teacher(teacher, config, data, device, world)
    held_out = batches.held_out(settings.eval_seq_len, settings.eval_tokens)
    # A measurement chooses the kernel of a new run. If the run continued with another one, its losses would change.
    longest_by_products = world.broadcast_from_first(
        lambda: products_up_to(device) if began is None else SHORT * ("products" in began)
    )
    kernels = attention_kernels(
        config.model,
        tokens_read(config).stack,
        world.context_group.shard(settings.seq_len).runs if world.context_group else None,
        packed=settings.document_mask,
        device=device,
        products_up_to=longest_by_products,
    )
    with world.in_turn():
        initial = initial_of(config, batches, has_begun=has_begun)
    return RunSetup(
        config, settings, device, world, batches, held_out, compiled, longest_by_products, kernels, initial, teacher
    )


def _check_text(setup: RunSetup, corpus: str | None) -> None:
    named, data, world = setup.config.data.named, setup.batches.data, setup.world
    if corpus not in (None, data.fingerprint):
        raise UserError(
            f"corpus: {corpus!r}, but the fingerprint of {named} is {data.fingerprint!r}; if the text has changed "
            "since a study began, begin a new study"
        )
    if world.broadcast_from_first(lambda: data.fingerprint) != data.fingerprint:
        raise UserError(
            f"{named}: process {world.rank} read a different text than process 0; all processes need the same text"
        )


def _notes(setup: RunSetup) -> Iterator[str]:
    settings, data, vocab_size = setup.settings, setup.batches.data, setup.config.model.vocab_size
    if vocab_size > (known := data.special.vocab_size):
        rows = f"embedding rows from {known:,} on are never used"
        yield f"model.vocab_size is {vocab_size:,}, but the data has only {known:,} token ids; {rows}"
    for name, passes in data.passes(settings.steps, settings.rows, settings.seq_len).items():
        if passes > WORTH_REPEATING:
            yield (
                f"{name} is read {passes:.1f} times; text that is repeated more than {WORTH_REPEATING} times teaches "
                "less and less (Muennighoff 2023)"
            )
    if isinstance(data, PairData):
        padding = data.padding(settings.rows, settings.seq_len)
        yield f"{padding:.1%} of the tokens in training windows are padding, because each window is one pair"
    if isinstance(data, ChatData):
        padding, counted = data.padding(settings.seq_len), data.counted_per_window(settings.seq_len) / settings.seq_len
        yield f"{counted:.1%} of the tokens in training windows count, and {padding:.1%} are padding"
    if setup.is_compiled:
        how = f"train.compile: {settings.compile}"
        yield f"layers are compiled ({how}); the first step takes up to a minute longer"
    if slow := slow_attention(setup.kernels, settings.seq_len):
        yield slow


def _run(setup: RunSetup, folder: RunFolder, callback: Callback, notes: list[str]) -> RunSummary:
    config, device, world = setup.config, setup.device, setup.world
    with ExitStack() as stack:
        world.broadcast_from_first(lambda: stack.enter_context(folder.locked()))
        world.broadcast_from_first(lambda: _check_lora(config, folder))
        notes += world.broadcast_from_first(lambda: _claim(setup, folder))
        if summary := world.broadcast_from_first(folder.summary):
            return summary
        callback.on_data(str(setup.batches.data))
        for note in notes:
            callback.on_note(note)
        # With several processes, the memory of each is not estimated, so errors cannot suggest settings that fit.
        of_teacher = bytes_of(setup.teacher) if setup.teacher else 0
        stack.enter_context(out_of_memory_explained(config, device, of_teacher) if world.size == 1 else nullcontext())
        if world.is_first:
            folder.copies = stack.enter_context(opened(folder.path, config, folder.environment(), callback.on_note))
        return Training(setup, folder, callback).run().in_folder(folder.path)


def _claim(setup: RunSetup, folder: RunFolder) -> list[str]:
    files = setup.initial.start.files if setup.initial else None
    return folder.claim(setup.config, _record(setup), setup.batches.data.tokenizer, files)


def _check_lora(config: Config, folder: RunFolder) -> None:
    if config.train.lora and not (config.train.start or imported(folder.path) or has_checkpoint(folder.checkpoints)):
        raise UserError(
            "train.lora: LoRA changes trained weights, but this run begins with random ones; set train.start, or leave "
            "train.lora out"
        )


def _record(setup: RunSetup) -> dict[str, Any]:
    env = environment(setup.device) | {
        "compiled": setup.is_compiled,
        "attention": dict(setup.kernels),
        "processes": setup.world.division,
        "corpus": setup.batches.data.fingerprint,
    }
    if setup.initial:
        env["start"] = setup.initial.start.digest
    if before := setup.batches.data.special.documents:
        env["document_token"] = before[0]
    if setup.batches.data.form == "pairs":
        env["pairs"] = True
    if ends := setup.batches.data.special.responses:
        env["response_ends"] = list(ends)
    if loss_depends_on_micro_batches(setup.config):
        env["micro_batch_tokens"] = setup.settings.micro_batch_tokens
    if setup.teacher:
        env["teacher"] = setup.teacher.digest
    if code := sources(setup.config):
        env["plugins"] = code
    return env
