"""Parts that recurrent mixers share: a short convolution, a chunked scan, and a norm with a gate.

A scan cuts a sequence into chunks. Matrix products process all tokens of a chunk in parallel, and only a state is
passed from one chunk to the next. From token s to a later token q, the state decays by the product of the decays of
tokens s + 1 to q.

Shapes: B batch, T tokens, C channels, K kernel size, W = K - 1 inputs kept as state, S = W + T. Axes of a scan: b
batch, c chunk, q token of a chunk, s earlier token of the same chunk, h head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archlab.config.components.activation import ActivationName
from archlab.config.components.component import RoleName
from archlab.config.components.recurrent import GatedRMSNorm, chunking
from archlab.model.activations import make_activation
from archlab.model.arithmetic import at_least_float32
from archlab.model.context import Context
from archlab.model.norms import rms_norm
from archlab.model.state import State, is_step


class CausalConv(nn.Module):
    """Causal convolution per channel: y_t = sum over j of w_j x_{t-K+1+j} (+ b).

    The input is a concatenation of several tensors, and `widths` holds their numbers of channels. The state `conv`
    holds the last K - 1 inputs. Inputs before the sequence are 0. Padding does not affect other positions, and the
    outputs at padding are 0.
    """

    def __init__(self, widths: tuple[int, ...], kernel_size: int, *, bias: bool, activation: nn.Module) -> None:
        super().__init__()
        self.widths, channels = widths, sum(widths)
        self.kernel_size, self.activation = kernel_size, activation
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel_size))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        self.roles: dict[str, RoleName] = {"weight": "convolution"}
        self.constants = {"bias": 0.0}

    def forward(self, x_BTC: Tensor, context: Context, state: State | None) -> Tensor:
        """Apply the convolution and the activation: [B, T, C] -> [B, T, C]."""
        x_BTC = without_padding(x_BTC, context)
        if state is None:
            window_BSC = F.pad(x_BTC, (0, 0, self.kernel_size - 1, 0))
        else:
            window_BSC = torch.cat((state["conv"].to(x_BTC.dtype), x_BTC), 1)
            state["conv"].copy_(window_BSC[:, x_BTC.shape[1] :].detach())
        if state is not None and is_step(x_BTC.shape[1]):
            y_BTC = self._biased((window_BSC * self.weight[:, 0].T).sum(1, keepdim=True)).to(x_BTC.dtype)
        elif context.starts_BT is not None:
            y_BTC = self._in_documents(window_BSC, context.starts_BT).to(x_BTC.dtype)
        else:
            y_BCT = F.conv1d(window_BSC.transpose(1, 2), self.weight, self.bias, groups=len(self.weight))
            y_BTC = y_BCT.transpose(1, 2).contiguous()  # the following code reads it in this order
        return without_padding(self.activation(y_BTC), context)

    def _in_documents(self, window_BSC: Tensor, starts_BT: Tensor) -> Tensor:
        """Convolve one tap at a time. Leave out taps that reach back beyond the start of a token's document."""
        T = starts_BT.shape[1]
        age_BT1 = (torch.arange(T, device=starts_BT.device) - starts_BT)[..., None]
        y_BTC = torch.zeros_like(window_BSC[:, :T])
        for j in range(self.kernel_size):
            is_inside_BT1 = age_BT1 >= self.kernel_size - 1 - j
            y_BTC = y_BTC + window_BSC[:, j : j + T] * is_inside_BT1 * self.weight[:, 0, j]
        return self._biased(y_BTC)

    def _biased(self, y_BTC: Tensor) -> Tensor:
        return y_BTC if self.bias is None else y_BTC + self.bias


def without_padding(x_BTC: Tensor, context: Context) -> Tensor:
    """Set the elements of x at padding to 0."""
    return x_BTC if context.is_real_BT is None else x_BTC * context.is_real_BT[..., None]


def chunked(x_bt: Tensor) -> Tensor:
    """Divide the tokens into chunks: [b, t, ...] -> [b, c, q, ...]. The last chunk is padded with 0."""
    T = x_bt.shape[1]
    n, size = chunking(T)
    return F.pad(x_bt, (0, 0) * (x_bt.ndim - 2) + (0, n * size - T)).unflatten(1, (n, size))


def joined(x_bcq: Tensor, n_tokens: int) -> Tensor:
    """Join chunks, the inverse of `chunked`: [b, c, q, ...] -> [b, t, ...]."""
    return x_bcq.flatten(1, 2)[:, :n_tokens]


def sum_up_to(x: Tensor, dim: int) -> Tensor:
    """Return the sums along an axis up to each entry, as `x.cumsum(dim)` does.

    A product with ones replaces cumsum where torch refuses it.
    """
    if _refuses_cumsum(x):
        ones = x.new_ones(x.shape[dim], x.shape[dim]).triu()
        return (x.movedim(dim, -1) @ ones).movedim(-1, dim)
    return x.cumsum(dim)


def _refuses_cumsum(x: Tensor) -> bool:
    """Return whether torch refuses cumsum: on a GPU, if only deterministic algorithms are allowed."""
    return x.is_cuda and torch.are_deterministic_algorithms_enabled()


def decays(log_decay_bcqh: Tensor, starts_bt: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return two tensors of decay factors, and the logarithm of each chunk's decay.

    The first, [b, c, h, q, s], holds the decay from token s to token q of the same chunk. The second, [b, c, h, q],
    holds the decay from the state before the chunk to token q. A decay is a factor from 0 to 1. It is 0 if a document
    starts in between, or if s comes after q. `log_decay` of each token is <= 0. The third, [b, c, h], holds the
    logarithm of the decay from the state before the chunk to its last token.
    """
    log_bchq = log_decay_bcqh.transpose(2, 3)
    size = log_decay_bcqh.shape[2]
    causal_qs = torch.ones(size, size, dtype=torch.bool, device=log_bchq.device).tril()
    # Sum over the tokens between s and q. Subtracting sums from the chunk's start would lose precision.
    after_s_bchqs = log_bchq[..., None].expand(*log_bchq.shape, size).masked_fill(~causal_qs.tril(-1), 0)
    between_bchqs = sum_up_to(after_s_bchqs, -2)
    since_bchq = sum_up_to(log_bchq, -1)
    seen = causal_qs
    if starts_bt is not None:
        starts_bc1q = starts_in_chunks(starts_bt)
        seen = causal_qs & (starts_bc1q[..., None] <= torch.arange(size, device=starts_bt.device))
        since_bchq = since_bchq.masked_fill(starts_bc1q >= 0, -torch.inf)
    # Mask before exp, so that hidden entries and their gradients are 0.
    return between_bchqs.masked_fill(~seen, -torch.inf).exp(), since_bchq.exp(), since_bchq[..., -1]


def starts_in_chunks(starts_bt: Tensor) -> Tensor:
    """Return the start of the document of each token, [b, c, 1, q], counted from the first token of the chunk."""
    starts_bcq = chunked(starts_bt)
    n, size = starts_bcq.shape[1:]
    first_c1 = size * torch.arange(n, device=starts_bt.device)[:, None]
    return (starts_bcq - first_c1)[:, :, None]


def carried(added_bch: Tensor, log_decay_bch: Tensor, S_bh: Tensor) -> tuple[Tensor, Tensor]:
    """Return the state before each chunk, [b, c, h, ...], and the state after the last one, [b, h, ...].

    Every chunk changes the state to decay * S + added. Here, one matrix product computes all states. For a large number
    of chunks it takes more computation than a loop over the chunks, but a GPU spends such a loop on starting kernels.
    """
    changes_bth = torch.cat((S_bh[:, None], added_bch), 1)  # the initial state, then what each chunk adds
    between_bhct = decays(F.pad(log_decay_bch, (0, 0, 1, 0))[:, None], None)[0][:, 0]
    states_bch = torch.einsum("bhct,bth...->bch...", between_bhct, changes_bth)
    return states_bch[:, :-1], states_bch[:, -1]


def initial_decay(n_heads: int, least: float, most: float) -> dict[str, Tensor]:
    """Return the initial values of `A_log` and `dt_bias`.

    A_log is ln A for A from `least` to `most`. dt_bias is the inverse softplus of dt, for steps dt from 0.001 to 0.1.
    Published code draws A uniformly and dt log-uniformly. Here both are spaced evenly on these scales, so that they do
    not depend on a seed. The order of dt over the heads is unrelated to the order of A.
    """
    heads = torch.arange(n_heads, dtype=torch.float64)
    A = least + (most - least) * (heads + 0.5) / n_heads
    dt = 0.001 * 100 ** ((heads * (5**0.5 - 1) / 2 + 0.5) % 1)
    return {"A_log": A.log(), "dt_bias": dt.expm1().log()}


class Gate(nn.Module):
    """Gate without a norm: x silu(z)."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Return `x * silu(z)`, computed in float32 or wider. The arguments and the result are [..., width]."""
        return at_least_float32(x) * F.silu(at_least_float32(z))


class GatedNorm(nn.Module):
    """RMSNorm and gate of a mixer's output.

    If the gate comes before the norm, the output is rms(x silu(z)) w; otherwise it is rms(x) w silu(z). Here rms
    divides each group of `width` features by its own root mean square. The activation can be another one than silu.
    """

    def __init__(self, config: GatedRMSNorm, width: int, groups: int = 1, activation: ActivationName = "silu") -> None:
        super().__init__()
        self.activation = make_activation(activation)
        self.width, self.eps, self.gate_first = width, config.eps, config.gate == "before"
        self.weight = nn.Parameter(torch.empty(groups * width))
        self.constants = {"weight": 1.0}

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the gated, normalized x in at least float32. The arguments and the result are [..., n * width].

        If the weight has the size of one group of features, all n groups share it.
        """
        x, gate = at_least_float32(x), self.activation(at_least_float32(z))
        x = (x * gate if self.gate_first else x).unflatten(-1, (-1, self.width))
        normed = rms_norm(x, None, self.eps)
        normed = normed * self.weight.to(x.dtype).view(-1, self.width)
        return normed.flatten(-2) if self.gate_first else normed.flatten(-2) * gate
