"""Outcomes that are timed, one arm after the other and nothing else beside them."""

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
from archlab.infer.speed import WARM_UP, profile, rehearse, rehearse_decoding, seconds_of
from archlab.study.arm import Arm
from archlab.study.outcome_schema import DecodingSpeed, NormShare, Outcome, PeakMemory, TrainingSpeed
from archlab.study.outcomes.value import check_timer
from archlab.study.stats import Values
from archlab.training.code_digest import code_digest
from archlab.training.device import choose_device
from archlab.workers import starting_workers

ROUNDS = 9
"""In each, every arm has its turn; a round is to timing what a seed is to training. With nine, values without any
scatter are told apart in up to twelve comparisons (p is 2 / 2^9)."""

_STEPS = 8
"""In a round, of which the fastest counts: what slows a step down comes from elsewhere."""


_FILE = "timings.json"

OnTiming = Callable[[str], Callable[[int], None]]
"""Called with the title of an outcome to be timed; returns what is to be called with how many rounds are over."""


def unseen(title: str) -> Callable[[int], None]:
    """Nobody looks on."""
    return lambda rounds: None


def read_timings(outcomes: Iterable[Outcome], arms: Sequence[Arm], study: Path) -> dict[Outcome, dict[str, Values]]:
    """Outcome -> arm -> round -> value, of those that were timed for these arms; UserError for damage."""
    file = study / _FILE
    if not file.is_file():
        return {}
    verify(file, "delete it, and the arms are timed again")
    kept, found = json.loads(file.read_text()), dict[Outcome, dict[str, Values]]()
    for outcome in outcomes:
        if values := kept.get(_key(outcome, arms)):
            found[outcome] = {arm: {int(n): v for n, v in rounds.items()} for arm, rounds in values.items()}
    return found


def time_all(outcomes: Iterable[Outcome], arms: Sequence[Arm], study: Path, on_timing: OnTiming) -> None:
    """Time what was not yet timed, and keep it in the study's folder."""
    timed = [outcome for outcome in outcomes if outcome.source == "timing"]
    done = read_timings(timed, arms, study)
    for outcome in timed:
        if outcome not in done:
            configs = {arm.name: arm.config for arm in arms}
            done[outcome] = dict(time_arms(outcome, configs, on_timing(outcome.title)))
            values = {_key(outcome, arms): values for outcome, values in done.items()}
            write_with_digests(study, {_FILE: json.dumps(values)})


def forget_timings(study: Path) -> None:
    """So that all are made again."""
    (study / _FILE).unlink(missing_ok=True)


def _key(outcome: Outcome, arms: Sequence[Arm]) -> str:
    """Of what was timed, under which names, where and by which code."""
    configs = {arm.name: in_old_form(resolved(arm.config)) | {"plugins": sources(arm.config)} for arm in arms}
    where = [choose_device(arms[0].config.train).name, torch.get_num_threads(), torch.__version__, code_digest()]
    return config_hash({"outcome": outcome.meaning, "arms": configs, "where": where})


def time_arms(
    outcome: Outcome, configs: Mapping[str, Config], on_round: Callable[[int], None]
) -> dict[str, dict[int, float | None]]:
    """Arm -> round -> value. In each round all arms have their turn, so that a slow minute hits all alike. `on_round`
    is called with how many rounds are over."""
    timed: dict[str, Callable[[], float]] = {
        arm: make(outcome, config, check=check_timer) for arm, config in configs.items()
    }
    for time in timed.values():  # memory is taken, code is compiled
        time()
    rounds = list[dict[str, float]]()
    for number in range(ROUNDS):
        on_round(number)
        rounds.append({arm: time() for arm, time in _turned(list(timed.items()), number)})
    on_round(ROUNDS)
    return {arm: {number: found[arm] for number, found in enumerate(rounds)} for arm in configs}


def _turned(items: Sequence[tuple[str, Callable[[], float]]], by: int) -> list[tuple[str, Callable[[], float]]]:
    """The same, beginning with another one in each round."""
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
    return lambda: _in_a_process_of_its_own(config)


def _in_a_process_of_its_own(config: Config) -> float:
    """Bytes; a process only ever takes more memory, so another arm would be counted with it."""
    of_its_own = mp.get_context("forkserver")
    of_its_own.set_forkserver_preload([__name__])  # else each would import torch anew, for seconds
    with ProcessPoolExecutor(1, of_its_own) as pool:
        with starting_workers():
            found = pool.submit(_peak, config)
        try:
            return found.result()
        except BrokenProcessPool:
            raise UserError("peak memory: the process that measures it died; often that is too little memory") from None


def _peak(config: Config) -> float:
    """The most that the process has taken, or the GPU held."""
    run = rehearse(config)
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds_of(run.step, 1)
    if run.device.type == "cuda":
        return float(torch.cuda.max_memory_allocated())
    # Not getrusage: a process inherits its ru_maxrss from the one that started it.
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024.0
