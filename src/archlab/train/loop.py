"""The training loop: from a config and a folder to a finished run."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch.optim import Optimizer

from archlab.allocator import keep_freed_memory
from archlab.config.schema import Config
from archlab.config.sources import sources
from archlab.config.training import ResolvedTrain, check_next_token, resolve_train
from archlab.cost.flops import training_flops
from archlab.cost.memory import training_memory
from archlab.cost.params import parameters
from archlab.data.held_out import HeldOut
from archlab.data.open import open_training_data
from archlab.data.training_data import TrainingData
from archlab.errors import UserError
from archlab.interrupt import stop_on_signal
from archlab.model.decoder import Decoder
from archlab.model.kernels import prefer_products
from archlab.train.attention_kernels import attention_kernels, products_up_to, slow_attention
from archlab.train.checkpoint import load_metrics, load_optimizer, load_weights, newest_checkpoint, save_checkpoint
from archlab.train.compiling import compile_layers, is_compiled
from archlab.train.device import Device, choose_device, environment
from archlab.train.evaluate import Score, predict
from archlab.train.optim import make_optimizer
from archlab.train.probing import Probing
from archlab.train.progress import Callback, StepMetrics, progress_callback
from archlab.train.run_folder import RunFolder, imported
from archlab.train.step import update
from archlab.train.summary import NOT_FINITE, RunSummary, summarise

WORTH_REPEATING = 4
"""Passes over a text up to which it teaches about as much as new text would (Muennighoff 2023, arXiv 2305.16264)."""


@dataclass(frozen=True)
class _Run:
    """What a run needs beside its folder, all of it found before anything is written."""

    config: Config
    settings: ResolvedTrain
    device: Device
    data: TrainingData
    held_out: HeldOut
    is_compiled: bool
    kernels: Mapping[str, int]
    """Of attention: by name, how many layers use it."""

    @classmethod
    def of(cls, config: Config) -> "_Run":
        """UserError for what the model, this machine or the text cannot do."""
        settings = resolve_train(config)
        check_next_token(config.model)
        device = choose_device(config.train)
        device.check_memory(training_memory(parameters(config.model).total).total)
        data = open_training_data(config.data, config.model.vocab_size)
        held_out = data.held_out(settings.eval_seq_len, settings.eval_tokens, masked=settings.document_mask)
        compiled = is_compiled(config, settings, device)
        on_cuda, packed = device.type == "cuda", settings.document_mask
        kernels = attention_kernels(
            config.model, settings.seq_len, packed=packed, on_cuda=on_cuda, products_up_to=products_up_to(device)
        )
        return cls(config, settings, device, data, held_out, compiled, kernels)


def train(config: Config, out: str | Path, callback: Callback | None = None, corpus: str | None = None) -> RunSummary:
    """Train in the folder `out`, or go on there from its last checkpoint; a finished run is only read.

    `callback` is called while the training goes on; without one, its progress is printed to stderr. Returns how the run
    ended. Raises UserError for a folder that holds another run, and for text of another fingerprint than `corpus`;
    KeyboardInterrupt, after a checkpoint, when the run is asked to stop.
    """
    keep_freed_memory()
    run = _Run.of(config)
    data = run.data
    if corpus not in (None, data.fingerprint):
        raise UserError(f"{config.data.named}: the text has changed since the study began; begin another one")
    callback = callback or progress_callback()
    known = data.known_tokens
    if config.model.vocab_size > known:
        rows = f"rows from {known:,} on are never used"
        callback.on_note(f"model.vocab_size {config.model.vocab_size:,}; the data has {known:,} token ids: {rows}")
    for name, passes in data.passes(run.settings.steps * run.settings.rows, run.settings.seq_len).items():
        if passes > WORTH_REPEATING:
            callback.on_note(
                f"{name} is read {passes:.1f} times; what is repeated more than {WORTH_REPEATING} times teaches "
                "less and less (Muennighoff 2023)"
            )
    folder = RunFolder(Path(out))
    with folder.locked():
        how = {"compiled": run.is_compiled, "attention": dict(run.kernels)}
        env = environment(run.device) | how | {"corpus": data.fingerprint}
        if code := sources(config):
            env["plugins"] = code
        for note in folder.claim(config, env, data.tokenizer):
            callback.on_note(note)
        return folder.summary() or _train(run, folder, callback)


def _train(run: _Run, folder: RunFolder, callback: Callback) -> RunSummary:
    settings, device, held_out = run.settings, run.device, run.held_out
    steps, seq_len = settings.steps, settings.seq_len
    model = Decoder(run.config.model, seed=settings.seed).to(device.type).train()
    prefer_products(model, products_up_to(device))
    optimizer = make_optimizer(model, settings)
    first = _resume(folder, model, optimizer, steps, callback)
    if first:
        callback.on_resume(first)
    if run.is_compiled:
        callback.on_note(
            f"layers are compiled (train.compile: {settings.compile}), which takes the first step up to a minute"
        )
        compile_layers(model)
    if slow := slow_attention(run.kernels, seq_len):
        callback.on_note(slow)
    mfu_per_speed = training_flops(run.config.model, seq_len) / device.peak_flops()
    why: str | None = None

    with stop_on_signal() as stop, callback:
        if first == 0 and (score := predict(model, held_out, device).score(held_out)).is_finite:
            folder.log(step=0, tokens=0, **score.measures())
        probing = Probing(model, held_out, settings.probe_every, device)
        if first == 0:
            probing.after_update(0, folder)
        for step in range(first, steps):
            probing.before_update(step + 1)
            start = time.perf_counter()
            windows = run.data.batch(settings.seed, step, settings.rows, seq_len)
            result = update(model, optimizer, windows, settings, step, device, held_out.separator)
            speed = settings.batch_tokens / (time.perf_counter() - start)
            if not result.is_finite:
                why = NOT_FINITE
                folder.log(step=step + 1, diverged=True, loss=str(result.loss), grad_norm=str(result.grad_norm))
                break
            done, tokens = step + 1, (step + 1) * settings.batch_tokens
            folder.log(
                step=done, tokens=tokens, loss=result.loss, lr=result.lr, grad_norm=result.grad_norm,
                tokens_per_second=speed, **result.routers,
            )  # fmt: skip
            probing.after_update(done, folder)
            score: Score | None = None
            if done % settings.eval_every == 0 or done == steps:
                predictions = predict(model, held_out, device)
                score = predictions.score(held_out)
                if not score.is_finite:
                    why = NOT_FINITE
                    folder.log(step=done, diverged=True, held_out_loss=str(score.loss))
                    break
                folder.log(step=done, tokens=tokens, **score.measures())
                if done == steps:  # before the last checkpoint, after which nothing is evaluated any more
                    folder.write_documents(predictions.by_document(held_out, run.data.beginnings(held_out)))
            callback.on_step(StepMetrics(done, steps, result.loss, speed, speed * mfu_per_speed, score))
            is_last, stopping = done == steps, stop.requested
            if is_last or stopping or done % settings.checkpoint_every == 0:
                save_checkpoint(folder.checkpoints, done, model, None if is_last else optimizer, folder.logged())
                if stopping and not is_last:
                    raise KeyboardInterrupt
        is_imported = imported(folder.path) is not None
        summary = summarise(folder.metrics(), why, model, device, mfu_per_speed, is_imported=is_imported)
        folder.finish(summary)
        if stop.requested:
            raise KeyboardInterrupt
    return summary


def _resume(folder: RunFolder, model: Decoder, optimizer: Optimizer, steps: int, callback: Callback) -> int:
    """Steps already done; model, optimiser and metrics are made what they were after them."""
    newest, damaged = newest_checkpoint(folder.checkpoints)
    if newest is None and imported(folder.path):
        why = "; ".join(damaged) or f"{folder.checkpoints}: no checkpoint"
        raise UserError(f"{why}; without the imported weights the run cannot begin: import the model again")
    for damage in damaged:
        callback.on_note(f"{damage}; {'the one before is used' if newest else 'the run begins again'}")
    if newest is None:
        folder.rewind(b"")
        return 0
    done, path = newest
    load_weights(path, model)
    if 0 < done < steps:  # imported weights are at step 0, without an optimiser
        load_optimizer(path, model, optimizer)
    folder.rewind(load_metrics(path))
    return done
