"""A utilization of more than 100% is a wrong peak, so it is measured again, or left out with the reason."""

import pytest
import torch

from archlab.cli import app
from archlab.measuring.speed import training_speed
from archlab.training.callback import Callback
from archlab.training.device import Device
from archlab.training.run_folder import RunFolder
from archlab.training.train import train
from archlab.training.utilization import Utilization, mfu_text
from tiny import config, write_text

pytestmark = pytest.mark.usefixtures("own_cache")


class Measured(Device):
    """Device whose peak has been measured as one value after another. The last one repeats."""

    def __init__(self, *peaks: float) -> None:
        super().__init__("cpu", torch.float32)
        object.__setattr__(self, "peaks", list(peaks))

    def peak_flops(self, seconds: float = 0) -> float:
        peaks = self.peaks  # pyright: ignore[reportAttributeAccessIssue]
        return peaks.pop(0) if len(peaks) > 1 else peaks[0]


@pytest.mark.parametrize(
    ("peaks", "expected"),
    [
        ([100.0], 0.5),
        ([20.0, 100.0], 0.5),  # other work was running at first
        ([20.0, 30.0, 40.0, 100.0], 0.5),
        ([20.0], None),
        ([50.0], 1.0),
    ],
)
def test_a_peak_below_the_speed_is_measured_again(peaks: list[float], expected: float | None) -> None:
    utilization = Utilization(10.0, Measured(*peaks), 1)
    assert utilization.at(5.0) == expected


def test_the_peak_is_the_best_measurement_and_never_falls() -> None:
    utilization = Utilization(10.0, Measured(50.0, 100.0, 30.0), 2)
    assert utilization.at(5.0) == 0.5  # each of two devices makes half of the work
    utilization.measure()
    assert utilization.peak == 100.0
    utilization.measure()
    assert utilization.peak == 100.0
    assert utilization.at(5.0) == 0.25


def test_a_long_run_measures_its_peak_at_the_end_too() -> None:
    assert Utilization(10.0, Measured(60.0, 100.0)).of_run(tokens=20, tokens_per_second=5.0) == 50 / 60
    assert Utilization(10.0, Measured(60.0, 100.0)).of_run(tokens=200, tokens_per_second=5.0) == 0.5


@pytest.mark.parametrize(
    ("mfu", "text"), [(0.43, "MFU 43%"), (1.0, "MFU 100%"), (None, "MFU unknown"), (2.24, "MFU unknown")]
)
def test_a_wrong_mfu_is_not_shown(mfu: float | None, text: str) -> None:
    assert mfu_text(mfu) == text


def test_a_run_says_why_its_mfu_is_unknown(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(Device, "peak_flops", lambda self, seconds=0: 1.0)
    built = config(data=write_text(tmp_path))
    notes = list[str]()

    class Notes(Callback):
        def on_note(self, text: str) -> None:
            notes.append(text)

    assert train(built, tmp_path / "run", Notes()).mfu is None
    assert [note for note in notes if "MFU" in note] == [
        "the MFU is unknown, because training was faster than the measured peak: other work on this machine slowed down "
        "its measurement"
    ]
    assert RunFolder(tmp_path / "run").summary().mfu is None
    assert app.main(["train", str(tmp_path / "run"), "--out", str(tmp_path / "run")]) == 0
    assert "tok/s, MFU unknown, float32 on" in capsys.readouterr().out
    assert training_speed(built, 1).used is None


def test_a_run_measures_its_mfu(tmp_path) -> None:
    summary = train(config(data=write_text(tmp_path)), tmp_path / "run", Callback())
    assert summary.mfu is None or 0 < summary.mfu <= 1
