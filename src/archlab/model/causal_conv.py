"""A depthwise causal convolution that goes on where the pass before ended. Shapes: B batch, T tokens, C channels, K
taps, W = K - 1 inputs that are held, S = W + T."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.model.context import Context
from archlab.model.roles import RoleName
from archlab.model.state import State, is_step


class CausalConv(nn.Module):
    """y_t = sum over j of w_j x_{t-K+1+j} (+ b), channel by channel; what is before the text counts as 0.

    The state `conv` holds the last K - 1 inputs. Padded places give nothing to others, and 0 comes out of them.
    """

    def __init__(self, channels: int, taps: int, *, bias: bool, activation: nn.Module) -> None:
        super().__init__()
        self.taps, self.activation = taps, activation
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.roles: dict[str, RoleName] = {"weight": "taps"}
        self.constants = {"bias": 0.0}

    def forward(self, x_BTC: Tensor, context: Context, state: State | None) -> Tensor:
        """[B, T, C] -> [B, T, C], activated."""
        x_BTC = without_padding(x_BTC, context)
        if state is None:
            window_BSC = F.pad(x_BTC, (0, 0, self.taps - 1, 0))
        else:
            window_BSC = torch.cat((state["conv"].to(x_BTC.dtype), x_BTC), 1)
            state["conv"].copy_(window_BSC[:, x_BTC.shape[1] :].detach())
        if state is not None and is_step(x_BTC.shape[1]):
            y_BTC = self._biased((window_BSC * self.weight[:, 0].T).sum(1, keepdim=True)).to(x_BTC.dtype)
        elif context.starts_BT is not None:
            y_BTC = self._in_documents(window_BSC, context.starts_BT).to(x_BTC.dtype)
        else:
            y_BCT = F.conv1d(window_BSC.transpose(1, 2), self.weight, self.bias, groups=len(self.weight))
            y_BTC = y_BCT.transpose(1, 2).contiguous()  # as what follows reads it
        return without_padding(self.activation(y_BTC), context)

    def _in_documents(self, window_BSC: Tensor, starts_BT: Tensor) -> Tensor:
        """Tap by tap, for none may reach back beyond its document's start."""
        T = starts_BT.shape[1]
        age_BT1 = (torch.arange(T, device=starts_BT.device) - starts_BT)[..., None]
        y_BTC = torch.zeros_like(window_BSC[:, :T])
        for j in range(self.taps):
            is_inside_BT1 = age_BT1 >= self.taps - 1 - j
            y_BTC = y_BTC + window_BSC[:, j : j + T] * is_inside_BT1 * self.weight[:, 0, j]
        return self._biased(y_BTC)

    def _biased(self, y_BTC: Tensor) -> Tensor:
        return y_BTC if self.bias is None else y_BTC + self.bias


def without_padding(x_BTC: Tensor, context: Context) -> Tensor:
    """0 at padded places."""
    return x_BTC if context.is_real_BT is None else x_BTC * context.is_real_BT[..., None]
