"""Model FLOPs utilization (MFU): the FLOPs per second of training, divided by the peak that was measured here."""

from archlab.training.device import Device

_MEASUREMENTS = 3
"""Largest number of times that the peak is measured again because training was faster."""

_LONG = 10.0
"""Seconds of training from which a measurement at its end takes a negligible part of them."""


class Utilization:
    """Utilization of the devices by a run.

    Other work on the machine can make a measurement of the peak too low, but never too high. The peak is therefore the
    best of measurements at several times. If training was faster even so, the peak is unknown.
    """

    def __init__(self, flops_per_token: float, device: Device, n_devices: int = 1) -> None:
        """Measure the peak for the first time. `flops_per_token` is the work of all devices together."""
        self._flops, self._device, self._left = flops_per_token / n_devices, device, _MEASUREMENTS
        self.peak = device.peak_flops()
        """Best measured FLOPs per second of one device."""

    def measure(self, seconds: float = 0) -> None:
        """Measure the peak again, for at least this time."""
        self.peak = max(self.peak, self._device.peak_flops(seconds))

    def at(self, tokens_per_second: float) -> float | None:
        """Return the MFU at a speed, or None if the peak is unknown."""
        flops = self._flops * tokens_per_second
        while flops > self.peak and self._left:
            self._left -= 1
            self.measure()
        return None if flops > self.peak else flops / self.peak

    def of_run(self, tokens: int, tokens_per_second: float) -> float | None:
        """Return the MFU of a run that has ended, or None if the peak is unknown."""
        if tokens / tokens_per_second > _LONG:
            self.measure()
        return self.at(tokens_per_second)


def mfu_text(mfu: float | None) -> str:
    """Return text such as `MFU 43%`. Runs of old versions may have an MFU above 1, which is not known either."""
    return "MFU unknown" if mfu is None or mfu > 1 else f"MFU {mfu:.0%}"


MFU_UNKNOWN = (
    "the MFU is unknown, because training was faster than the measured peak: other work on this machine slowed down "
    "its measurement"
)
"""Note on a run whose MFU is unknown."""
