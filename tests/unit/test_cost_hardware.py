"""Hardware: the makers' figures (dense, in one direction), names of devices, and measurements of this machine."""

import json
from pathlib import Path

import pytest
import torch

from archlab.cli import app
from archlab.errors import UserError
from archlab.measuring import measure
from archlab.measuring import measure as calibrate
from archlab.pricing.hardware import Hardware, hardware, load_hardware, this_machine
from archlab.training import processor_speed

DEVICES = dict(hardware())


@pytest.mark.parametrize(
    ("name", "bfloat16", "memory", "bandwidth", "link"),
    [
        ("h100", 989.4e12, 80e9, 3.35e12, 450e9),
        ("h100-pcie", 756e12, 80e9, 2e12, 64e9),
        ("h200", 989.4e12, 141e9, 4.8e12, 450e9),
        ("b200", 2.25e15, 180e9, 8e12, 900e9),
        ("a100-40gb", 312e12, 40e9, 1.555e12, 300e9),
        ("a100-80gb", 312e12, 80e9, 2.039e12, 300e9),
        ("l4", 121e12, 24e9, 300e9, 32e9),
        ("l40s", 362.05e12, 48e9, 864e9, 32e9),
        ("rtx-4090", 165.2e12, 24e9, 1.008e12, 32e9),
        ("mi300x", 1307.4e12, 192e9, 5.3e12, 448e9),
        ("tpu-v5p", 459e12, 95e9, 2.765e12, 600e9),
        ("tpu-v5e", 197e12, 16e9, 819e9, 200e9),
    ],
)
def test_figures_are_dense_and_of_one_direction(name: str, bfloat16: float, memory: int, bandwidth: float, link: float):
    """Programs can use a little more memory than the maker's GB say, because these are closer to GiB."""
    found = DEVICES[name]
    assert (found.peak["bfloat16"], found.bandwidth) == (bfloat16, bandwidth)
    assert memory <= found.memory < 1.09 * memory
    assert found.link
    assert found.link.bandwidth == link


TENSOR_CORES = ["h100", "h100-pcie", "h200", "a100-40gb", "a100-80gb", "l4", "l40s", "mi300x"]
"""Half the bits give twice the products. B200's TF32 is rounded to one digit in its brief, and floating-point sums of
the desktop cards are throttled."""


@pytest.mark.parametrize("name", TENSOR_CORES)
def test_half_the_bits_twice_the_speed(name: str):
    peak = DEVICES[name].peak
    assert peak["bfloat16"] == peak["float16"] == pytest.approx(2 * peak["tf32"], rel=0.02)
    assert peak["int8"] == pytest.approx(2 * peak["bfloat16"], rel=0.02)
    assert peak.get("float8", peak["int8"]) == peak["int8"]


@pytest.mark.parametrize("name", [name for name, found in DEVICES.items() if found.derivation])
def test_a_derived_peak_is_units_times_clock_times_operations(name: str):
    why = DEVICES[name].derivation
    assert why
    assert DEVICES[name].peak == pytest.approx(
        {key: why.units * why.clock * each for key, each in why.per_cycle.items()}, rel=1e-3
    )


@pytest.mark.parametrize("name", DEVICES)
def test_every_device(name: str):
    found = DEVICES[name]
    assert found.source
    assert found.price_per_hour is None
    assert found.measured is None
    assert 1 < found.speed("bfloat16") / found.bandwidth < 1000, "operations per byte"


def test_names():
    assert load_hardware("H100") == load_hardware("h100x1") == DEVICES["h100"]
    assert load_hardware("RTX_4090") == load_hardware("rtx4090") == DEVICES["rtx-4090"]
    assert load_hardware("mi300x") == DEVICES["mi300x"]
    many = load_hardware("a100-80gbx20")
    assert (many.name, many.count, many.servers) == ("A100 SXM 80 GB", 20, 3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h10", "unknown hardware 'h10'; did you mean h100\\? `archlab list hardware` shows all"),
        ("h1oo", "did you mean h100\\?"),
        ("a100", "did you mean a100-40gb or a100-80gb?"),
        ("quantum", "unknown hardware 'quantum'; `archlab list"),
        ("h100x0", "has no devices; allowed: at least 1, as in h100x8"),
        ("this", "this machine has not been measured yet; run `archlab hardware --measure`"),
        ("gone.yaml", "gone.yaml: No such file"),
    ],
)
def test_no_such_hardware(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=said):
        load_hardware(name)


def test_a_device_of_ones_own(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("{name: Mine, maker: me, year: 2025, peak: {float16: 1T}, memory: 1G, bandwidth: 1G}")
    with pytest.raises(UserError, match="peak contains float16; it must also contain float32 or bfloat16"):
        load_hardware(str(file))
    file.write_text("{name: Mine, maker: me, year: 2025, peak: {bfloat16: 1T}, memory: 1G, bandwith: 1G}")
    with pytest.raises(UserError, match=r"(?s)bandwidth .*missing.*bandwith .*did you mean bandwidth"):
        load_hardware(str(file))
    file.write_text("{name: Mine, maker: me, year: 2025, peak: {bfloat16: 1T}, memory: 1G, bandwidth: 1G}")
    assert load_hardware(f"{file}x4").speed("int8") == load_hardware(str(file)).speed("float32") == 1e12


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert app.main(arguments) == 0
    return capsys.readouterr().out


def test_listed_and_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    lines = output(capsys, "list", "hardware").splitlines()
    assert max(map(len, lines)) <= 80
    assert [name for name in DEVICES if any(line.split()[:1] == [name] for line in lines)] == list(DEVICES)
    assert "989T" in next(line for line in lines if line.startswith(" h100 "))
    assert json.loads(output(capsys, "list", "hardware", "--json"))["hardware"]["h100"]["memory"] == 81559 * 2**20
    shown = output(capsys, "hardware", "h100x16")
    assert all(words in shown for words in ("989T bfloat16", "295 operations per byte", "16, in 2 servers", "sparsity"))
    assert json.loads(output(capsys, "hardware", "h100x16", "--json"))["count"] == 16
    assert app.main(["hardware"]) == 2
    assert "not been measured yet" in capsys.readouterr().err
    assert app.main(["hardware", "h100", "--measure"]) == 2
    assert capsys.readouterr().err.startswith("--measure measures this machine, not 'h100'")


@pytest.mark.slow
def test_this_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Arrays are small here. The test checks that each figure is the amount divided by the time."""
    monkeypatch.setenv("ARCHLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(measure, "_SIDES", {"cpu": (32, 64)})
    monkeypatch.setattr(measure, "_SECONDS", 0)
    monkeypatch.setattr(processor_speed, "LARGE", 2**20)
    monkeypatch.setattr(calibrate, "TRAINED", calibrate.TRAINED[:1])
    monkeypatch.setattr(calibrate, "DECODED", calibrate.DECODED[:1])
    took = iter(range(1, 10))
    monkeypatch.setattr(
        processor_speed, "_shortest", lambda compute, at_least: compute() is not None and next(took) / 1000
    )
    before = torch.get_rng_state()
    output(capsys, "hardware", "--measure")
    assert torch.equal(torch.get_rng_state(), before)
    found = load_hardware("this")
    assert found.measured
    assert found.measured.products == {
        "float32": {"32": 2 * 32**3 / 0.001, "64": 2 * 64**3 / 0.002},
        "bfloat16": {"32": 2 * 32**3 / 0.003, "64": 2 * 64**3 / 0.004},
    }
    assert found.peak == {"float32": 2 * 64**3 / 0.002, "bfloat16": 2 * 64**3 / 0.004}
    assert found.measured.copy_bandwidth == found.bandwidth == 2 * 2**20 / 0.005
    assert found.measured.read_bandwidth == 2**20 / 0.006
    assert found.measured.dispatch == 0.008 / 2000
    assert found.measured.threads == torch.get_num_threads()
    assert Hardware.model_validate(found.model_dump()) == found
    shown = output(capsys, "hardware")
    assert "a small operation  4 µs" in shown
    assert "this" in output(capsys, "list", "hardware")
    this_machine().write_text("name: [")
    assert app.main(["hardware"]) == 2
    assert str(this_machine()) in capsys.readouterr().err


def test_products_that_take_too_long_are_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processor_speed, "product_flops", lambda kind, dtype, side, seconds: 1e9)
    assert list(measure._products("cpu", torch.float32)) == ["256", "512"], "1024: 2.1 seconds each"
