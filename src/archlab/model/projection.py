"""A linear map that knows what it is for."""

from torch import nn

from archlab.model.roles import RoleName


class Projection(nn.Linear):
    """A linear map that knows its role; its values are set by `initialise`, not here."""

    constants = {"bias": 0.0}  # noqa: RUF012 - read only

    def __init__(self, d_in: int, d_out: int, *, bias: bool, role: RoleName) -> None:
        super().__init__(d_in, d_out, bias=bias)
        self.roles: dict[str, RoleName] = {"weight": role}

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""
