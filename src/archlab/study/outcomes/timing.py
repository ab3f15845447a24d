"""Outcomes that are measured by timing. The arms are timed one after the other, with nothing else running."""

import json
import multiprocessing as mp
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from archlab.config.core.old_form import in_old_form
from archlab.config.core.registry import implements, make
from archlab.config.identity import config_hash, resolved
from archlab.config.schema import Config
from archlab.config.sources import sources
from archlab.digests import verify, write_with_digests
from archlab.errors import UserError
from archlab.measuring.speed import WARM_UP, profile, rehearse, rehearse_decoding, seconds_of
from archlab.study.arm import Arm
from archlab.study.outcomes.kinds import DecodingSpeed, NormShare, PeakMemory, TrainingSpeed
from archlab.study.outcomes.schema import Outcome
from archlab.study.outcomes.value import check_timer
from archlab.study.stats import Values
from archlab.training.code_digest import code_digest
from archlab.training.device import choose_device
from archlab.workers import starting_workers

ROUNDS = 9
"""Number of rounds of timing. In each round all arms are timed in turn, and rounds are paired like seeds. If an arm has
the same nonzero difference in all nine rounds, the p-value is 2 / 2^9. This is significant with up to twelve
comparisons, because 12 x 2 / 2^9 < 0.05."""

_STEPS = 8
"""Number of timed steps in a round. Only the fastest step counts, because other work of the machine slows down some
steps."""


_FILE = "timings.json"

OnTiming = Callable[[str], Callable[[int], None]]
"""Function that is called with the title of an outcome before the outcome is timed. It returns a callback that takes
the number of finished rounds."""


def no_progress(title: str) -> Callable[[int], None]:
    """Return a callback that shows no progress. This function is the default `OnTiming`."""
    return lambda rounds: None


def read_timings(outcomes: Iterable[Outcome], arms: Sequence[Arm], study: Path) -> dict[Outcome, dict[str, Values]]:
    """Return the values of the outcomes that were already timed with these arms, by outcome, arm and round.

    Raise UserError if the file is damaged.
    """
    file = study / _FILE
    if not file.is_file():
        return {}
    verify(file, "delete it, and archlab times the arms again")
    stored, timings = json.loads(file.read_text()), dict[Outcome, dict[str, Values]]()
    for outcome in outcomes:
        if values := stored.get(_key(outcome, arms)):
            timings[outcome] = {
                arm: {int(number): value for number, value in rounds.items()} for arm, rounds in values.items()
            }
    return timings


def time_all(outcomes: Iterable[Outcome], arms: Sequence[Arm], study: Path, on_timing: OnTiming) -> None:
    """Time all outcomes that are not timed yet, and store the values in the study's folder."""
    timed = [outcome for outcome in outcomes if outcome.source == "timing"]
    timings = read_timings(timed, arms, study)
    for outcome in timed:
        if outcome not in timings:
            configs = {arm.name: arm.config for arm in arms}
            timings[outcome] = dict(time_arms(outcome, configs, on_timing(outcome.title)))
            values = {_key(outcome, arms): values for outcome, values in timings.items()}
            write_with_digests(study, {_FILE: json.dumps(values)})


def forget_timings(study: Path) -> None:
    """Delete all timings, so that the next run measures them again."""
    (study / _FILE).unlink(missing_ok=True)


def _key(outcome: Outcome, arms: Sequence[Arm]) -> str:
    configs = {arm.name: in_old_form(resolved(arm.config)) | {"plugins": sources(arm.config)} for arm in arms}
    environment = [choose_device(arms[0].config.train).name, torch.get_num_threads(), torch.__version__, code_digest()]
    return config_hash({"outcome": outcome.meaning, "arms": configs, "where": environment})


def time_arms(
    outcome: Outcome, configs: Mapping[str, Config], on_round: Callable[[int], None]
) -> dict[str, dict[int, float | None]]:
    """Time an outcome on all arms, and return the values by arm and round.

    In each round all arms are timed in turn, so a slow minute affects all of them. `on_round` is called with the number
    of finished rounds.
    """
    timed: dict[str, Callable[[], float]] = {
        arm: make(outcome, config, check=check_timer) for arm, config in configs.items()
    }
    for time in timed.values():  # warm-up: memory is allocated, code is compiled
        time()
    rounds = list[dict[str, float]]()
    for number in range(ROUNDS):
        on_round(number)
        rounds.append({arm: time() for arm, time in _rotated(list(timed.items()), number)})
    on_round(ROUNDS)
    return {arm: {number: values[arm] for number, values in enumerate(rounds)} for arm in configs}


def _rotated(items: Sequence[tuple[str, Callable[[], float]]], by: int) -> list[tuple[str, Callable[[], float]]]:
    first = by % len(items)
    return [*items[first:], *items[:first]]


@implements(TrainingSpeed)
def _training_speed(outcome: TrainingSpeed, config: Config) -> Callable[[], float]:
    run = rehearse(config)
    return lambda: run.train.batch_tokens / min(seconds_of(run.step, _STEPS))


@implements(DecodingSpeed)
def _decoding_speed(outcome: DecodingSpeed, config: Config) -> Callable[[], float]:
    def measured() -> float:
        device = choose_device(config.train)
        steps = 2 * _STEPS
        _, step = rehearse_decoding(config, device, outcome.batch, outcome.context, steps)
        return outcome.batch / min(seconds_of(step, steps - WARM_UP))

    return measured


@implements(NormShare)
def _norm_share(outcome: NormShare, config: Config) -> Callable[[], float]:
    return lambda: next((share.time for share in profile(config, _STEPS).shares if share.kind == "norms"), 0.0)


@implements(PeakMemory)
def _peak_memory(outcome: PeakMemory, config: Config) -> Callable[[], float]:
    return lambda: _peak_in_own_process(config)


def _peak_in_own_process(config: Config) -> float:
    """Return the peak memory of a training step in bytes. The step runs in a separate process, so that memory of
    earlier arms is not included."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # otherwise each process would import torch for seconds
    with ProcessPoolExecutor(1, context) as pool:
        with starting_workers():
            peak = pool.submit(_peak, config)
        try:
            return peak.result()
        except BrokenProcessPool:
            raise UserError(
                "peak memory: the process that measures it died; a common reason is too little memory"
            ) from None


def _peak(config: Config) -> float:
    run = rehearse(config)
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds_of(run.step, 1)
    if run.device.type == "cuda":
        return float(torch.cuda.max_memory_allocated())
    # Not getrusage: a process inherits its ru_maxrss from the one that started it.
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match[1]) * 1024.0
