"""Stop strings, at which generated text ends."""

from collections.abc import Sequence

from archlab.errors import UserError


class StopStrings:
    """Filter that passes on the text before the first stop string, and holds back what may begin a stop string.

    The first stop string is the one that ends first, or the longest of several that end at the same character. The
    result does not depend on how the text is split into pieces.
    """

    def __init__(self, stop: str | Sequence[str]) -> None:
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in self.stop:
            raise UserError("stop: ''; allowed: strings of at least one character")
        self.found = False
        self._pending = ""

    def certain(self, piece: str) -> str:
        """Return the text that can be passed on after this piece. Set `found` if a stop string is complete."""
        certain = ""
        for character in piece:
            self._pending += character
            ends = [len(stop) for stop in self.stop if self._pending.endswith(stop)]
            if ends:
                self.found = True
                return certain + self._pending[: -max(ends)]
            n_certain = len(self._pending) - self._n_possible()
            certain, self._pending = certain + self._pending[:n_certain], self._pending[n_certain:]
        return certain

    def rest(self) -> str:
        return self._pending

    def _n_possible(self) -> int:
        ends = (self._pending[start:] for start in range(len(self._pending)))
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in self.stop)), 0)
