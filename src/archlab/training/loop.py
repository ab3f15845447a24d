"""Training loop: updates, evaluations and checkpoints, written to the run folder."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from archlab.config.schema import Config, TrainConfig
from archlab.data.batch import HeldOut
from archlab.data.chat_data import ChatData
from archlab.data.objectives import Batches
from archlab.errors import UserError
from archlab.hf.imported import imported
from archlab.interrupt import stop_on_signal
from archlab.model.kernels import prefer_products
from archlab.model.lora import initialize_lora
from archlab.model.sharded import local_numel
from archlab.pricing.work import teacher_flops, visible_training_flops
from archlab.training.callback import Callback, StepMetrics
from archlab.training.checkpoint import (
    Retention,
    load_metrics,
    load_optimizer,
    load_weights,
    model_is_gone,
    newest_checkpoint,
)
from archlab.training.compiling import compile_layers, recompute_layers
from archlab.training.device import Device
from archlab.training.evaluate import Predictions, Score, predict
from archlab.training.initial_values import Initial, logits_of, trained_logits
from archlab.training.optim import make_optimizer
from archlab.training.probes import Probing
from archlab.training.run_folder import RunFolder
from archlab.training.saving import Saver
from archlab.training.schedule import extension_step
from archlab.training.shard import sharded
from archlab.training.spikes import (
    MOST_REWINDS,
    PASSED_OVER,
    REWOUND,
    SKIPPED,
    SPIKE,
    SpikeWatch,
    batches_passed_over,
    rewinds_to,
)
from archlab.training.step import StepResult, update
from archlab.training.summary import NOT_FINITE, RunSummary, summarize
from archlab.training.teacher import Teacher
from archlab.training.trained_weights import TrainedWeights
from archlab.training.utilization import MFU_UNKNOWN, Utilization
from archlab.training.world import World
from archlab.transplant.logits_change import logits_change
from archlab.transplant.weights import Change


@dataclass(frozen=True)
class RunSetup:
    """Everything a run needs besides its folder, checked before anything is written."""

    config: Config
    settings: TrainConfig
    device: Device
    world: World
    batches: Batches
    held_out: HeldOut
    is_compiled: bool
    products_up_to: int
    """Longest window, in tokens, whose attention uses the kernel `products`."""
    kernels: Mapping[str, int]
    """Number of layers that use each attention kernel, by kernel name."""
    initial: Initial | None = None
    """Trained weights from which the run begins. None: random weights, or those of an imported run folder."""
    teacher: TrainedWeights | None = None
    """Weights of `train.teacher`; None without one."""

    def make_teacher(self) -> Teacher | None:
        """Read the teacher's weights, or return None without a teacher."""
        settings = self.settings.teacher
        if self.teacher is None or settings is None:
            return None
        return Teacher(self.teacher.weights, settings, self.device, self.world, self.products_up_to, self.is_compiled)


class Training:
    """Training loop and its state: the model, the optimizer and the current step."""

    def __init__(self, setup: RunSetup, folder: RunFolder, callback: Callback) -> None:
        """Load the newest checkpoint in the folder, or start at step 0."""
        settings, device, world = setup.settings, setup.device, setup.world
        self._setup, self._settings, self._device, self._world = setup, settings, device, world
        self._folder, self._callback = folder, callback
        newest, damaged = self._newest()
        initial = setup.initial if newest is None else None
        changes = initial.plan.changes if initial and initial.plan else ()
        before = trained_logits(initial, setup.held_out.batch, device, world) if initial and changes else None
        given = initial.plan.tensors if initial and initial.plan else None
        self._model = sharded(setup.config.model, settings, device.type, world, given)
        prefer_products(self._model, setup.products_up_to)
        self._optimizer = make_optimizer(self._model, settings)
        self._done = 0
        self._resume(newest, damaged)
        if changes:
            self._note_start(changes, before)
        if world.size > 1:
            own, total = (sum(map(count, self._model.parameters())) for count in (local_numel, Tensor.numel))
            callback.on_note(f"processes {world.division}; each holds {own:,} of {total:,} weights")
        if settings.lora:
            total = sum(p.numel() for p in self._model.parameters())
            trained = sum(p.numel() for p in self._model.parameters() if p.requires_grad)
            callback.on_note(f"LoRA trains {trained:,} of {total:,} weights")
        if setup.is_compiled:
            compile_layers(self._model)
        if settings.recompute:
            recompute_layers(self._model)
        self._teacher = setup.make_teacher()
        data = setup.batches.data
        counted = data.counted_per_window(settings.seq_len) if isinstance(data, ChatData) else None
        flops = visible_training_flops(setup.config, counted)
        if setup.teacher:
            flops += teacher_flops(setup.config, setup.teacher.weights.model, counted)
        self._utilization = Utilization(flops, device, world.size)
        extension = world.broadcast_from_first(lambda: 0 if folder.is_of_study else extension_step(settings))
        self._retention = Retention(settings.keep, settings.steps, extension)
        self._saver = Saver(folder.checkpoints, self._retention, world)
        self._probing = Probing(self._model, setup.held_out, settings.probe_every, device)
        self._why: str | None = None

    def run(self) -> RunSummary:
        """Train to the end and return the summary. On an interrupt, save a checkpoint and raise KeyboardInterrupt."""
        with stop_on_signal() as stop, self._callback, self._saver:
            if self._done == 0:
                self._before_the_first()
            while self._done < self._settings.steps and self._why is None:
                if self._try_step():
                    self._save(stopping := self._world.any(stop.requested))
                    if stopping and self._done < self._settings.steps:
                        raise KeyboardInterrupt
            self._saver.wait()
            summary = self._world.broadcast_from_first(self._ended)
            if stop.requested:
                raise KeyboardInterrupt
        return summary

    def _before_the_first(self) -> None:
        if (score := self._predict().score(self._setup.held_out)).is_finite:
            self._folder.log(step=0, tokens=0, **score.measures())
        self._probing.after_update(0, self._folder)

    def _try_step(self) -> bool:
        """Make one training step. Return False if the run went back to a checkpoint or diverged."""
        settings, folder, step = self._settings, self._folder, self._done
        self._probing.before_update(step + 1)
        start = time.perf_counter()
        index = step + self._passed_over
        batch = self._setup.batches.training(settings.seed, index, settings.rows, settings.seq_len)
        result = update(
            self._model,
            self._optimizer,
            batch,
            settings,
            step,
            self._device,
            self._world,
            self._skips_update,
            self._teacher,
            compiled=self._setup.is_compiled,
        )
        speed = settings.batch_tokens / (time.perf_counter() - start)
        if not result.is_finite:
            self._why = NOT_FINITE
            folder.log(step=step + 1, diverged=True, loss=str(result.loss), grad_norm=str(result.grad_norm))
            return False
        if not result.updated and settings.spikes.action == "rewind" and self._went_back(step):
            return False
        self._done = step + 1
        self._log(result, speed)
        self._probing.after_update(self._done, folder)
        score = self._evaluated()
        if self._why is not None:
            return False
        progress = StepMetrics(self._done, settings.steps, result.loss, speed, self._utilization.at(speed), score)
        self._callback.on_step(progress)
        return True

    def _log(self, result: StepResult, speed: float) -> None:
        if not result.updated:
            self._callback.on_note(f"spike at step {self._done}: its batch was skipped, without an update")
        made = {"lr": result.lr} if result.updated else {SKIPPED: 1}
        spike = {} if self._spike is None else {SPIKE: self._spike}
        self._folder.log(
            step=self._done, tokens=self._done * self._settings.batch_tokens, loss=result.loss, **made,
            grad_norm=result.grad_norm, tokens_per_second=speed, **spike, **result.routers, **result.teacher,
        )  # fmt: skip

    def _evaluated(self) -> Score | None:
        done, is_last, held_out = self._done, self._done == self._settings.steps, self._setup.held_out
        if done % self._settings.eval_every and not is_last:
            return None
        predictions = self._predict()
        score = predictions.score(held_out)
        if not score.is_finite:
            self._why = NOT_FINITE
            self._folder.log(step=done, diverged=True, held_out_loss=str(score.loss))
            return score
        self._folder.log(step=done, tokens=done * self._settings.batch_tokens, **score.measures())
        if is_last:  # before the last checkpoint: a run that resumes from it does not evaluate again
            beginnings = self._setup.batches.data.beginnings(held_out.windows)
            self._folder.write_documents(predictions.by_document(held_out, beginnings))
        return score

    def _predict(self) -> Predictions:
        return predict(self._model, self._setup.held_out, self._device, world=self._world)

    def _save(self, stopping: bool) -> None:
        self._saver.check()
        is_due = self._done % self._settings.checkpoint_every == 0 or self._retention.needs(self._done)
        if is_due or stopping:
            self._saver.save(self._done, self._model, self._optimizer, self._folder.logged())

    def _skips_update(self, loss: float, grad_norm: float) -> bool:
        """Return whether to skip the update of a step because any process detects a spike.

        If `spikes.action` is `note`, no update is skipped. All processes return the same result, even if rounding makes
        their losses slightly different.
        """
        self._spike = self._watch.add(loss, grad_norm)
        return self._settings.spikes.action != "note" and self._world.any(self._spike is not None)

    def _went_back(self, step: int) -> bool:
        """Go back to the newest checkpoint, and continue with the text after this step.

        Return False if there is no checkpoint, or if the run already went back to it MOST_REWINDS times.
        """
        self._saver.wait()
        newest, _ = self._newest()
        if newest is None:
            return False
        done, path = newest
        before = self._world.broadcast_from_first(lambda: rewinds_to(done, self._folder.metrics()))
        if len(before) == MOST_REWINDS:
            self._callback.on_note(
                f"the run has gone back to step {done} {MOST_REWINDS} times; it now continues without going back"
            )
            return False
        passed_over = {REWOUND: step + 1, PASSED_OVER: step + 1 - done}
        self._load(done, path)
        for line in (*before, {"step": done, SPIKE: self._spike, **passed_over}):
            self._folder.log(**line)
        self._note_past()
        self._callback.on_note(
            f"spike at step {step + 1}: the run went back to step {done} and continues with the text after the spike"
        )
        return True

    def _newest(self) -> tuple[tuple[int, Path] | None, list[str]]:
        return self._world.broadcast_from_first(lambda: newest_checkpoint(self._folder.checkpoints))

    def _resume(self, newest: tuple[int, Path] | None, damaged: list[str]) -> None:
        folder, settings, initial = self._folder, self._settings, self._setup.initial
        if newest is None and initial is None and self._began_from_model():
            raise model_is_gone(folder.checkpoints, damaged)
        if newest is None and damaged:  # only a user may decide to begin again, because training is lost
            hint = f"restore one from a backup, or delete {folder.checkpoints} to start over"
            raise UserError(f"{'; '.join(damaged)}; no other checkpoint is left: {hint}")
        if newest is None:
            folder.rewind(b"")
            source = str(initial) if initial else f"random, seed {settings.seed}"
        else:
            self._load(*newest)
            source = f"from {folder.path}, step {self._done:,} of {settings.steps:,}"
        self._callback.on_weights(source)
        for damage in damaged:
            self._callback.on_note(f"{damage}; an earlier checkpoint is used")
        self._note_past()

    def _began_from_model(self) -> bool:
        return "start" in self._folder.environment() or imported(self._folder.path) is not None

    def _note_start(self, changes: Sequence[Change], before_NV: Tensor | None) -> None:
        for change in changes:
            self._callback.on_note(f"{change.name} ({change.effect}): {change.report()}")
        if before_NV is None:
            self._callback.on_note("the trained model cannot read these batches, so its logits are not compared")
        else:
            after_NV = logits_of(self._model, self._setup.held_out.batch, self._device)
            self._callback.on_note(str(logits_change(before_NV, after_NV, "held-out tokens")))

    def _load(self, done: int, path: Path) -> None:
        load_weights(path, self._model, adds_lora=done == 0)
        if done == 0:
            initialize_lora(self._model, self._settings.seed)
        self._optimizer.state.clear()
        if 0 < done < self._settings.steps:  # imported weights are at step 0, without an optimizer
            load_optimizer(path, self._model, self._optimizer)
        self._folder.rewind(load_metrics(path))
        self._done = done

    def _note_past(self) -> None:
        metrics = self._world.broadcast_from_first(self._folder.metrics)
        self._watch, self._spike = SpikeWatch(self._settings.spikes, metrics), None
        self._passed_over = batches_passed_over(metrics)

    def _ended(self) -> RunSummary:
        is_imported = self._began_from_model()
        metrics = self._folder.metrics()
        summary = summarize(metrics, self._why, self._model, self._device, self._utilization, is_imported=is_imported)
        if summary.tokens_per_second and summary.mfu is None:
            self._callback.on_note(MFU_UNKNOWN)
        self._folder.finish(summary)
        return summary
