"""Update of the weights: the optimizer, the schedule of its learning rate, and the objective."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archlab.config.core.base import Positive, Probability, Settings
from archlab.config.core.registry import KindName, Named, Registered, Section


class Optimizer(Registered):
    """Base class of the optimizers."""

    section: ClassVar[Section] = "optimizer"
    default_kind: ClassVar[str | None] = "adamw"


class AdamW(Optimizer):
    """AdamW (Loshchilov 2019). Its settings are train.betas, train.eps and train.weight_decay."""

    kind: Literal["adamw"] = "adamw"


class Muon(Optimizer):
    """Updates of matrices from their orthogonalized momentum (Jordan 2024); AdamW updates all other parameters.

    Matrices are those with the roles input, narrow and output; each expert's matrix counts separately. AdamW updates
    tables (embedding, head), convolutions, norms and biases, with train.betas and train.eps.
    """

    kind: Literal["muon"] = "muon"
    momentum: Probability = 0.95
    """Factor of the running mean of gradients: the fraction of the earlier mean that remains at each update."""
    nesterov: bool = True
    """Whether the new gradient is mixed into the mean once more before it is orthogonalized (Nesterov momentum)."""
    steps: Annotated[int, Field(ge=1, le=20)] = 5
    """Number of Newton-Schulz steps towards the nearest matrix whose singular values are all 1. Five steps bring them
    into the range 0.7 to 1.2."""
    scale: Literal["adamw", "jordan", "spectral"] = "adamw"
    """Factor on the orthogonal matrix [d_out, d_in]. `adamw`: 0.2 sqrt(max(d_out, d_in)). Updates are then as large as
    AdamW's, so that its learning rates and weight decay hold (Liu 2025, Moonlight). `jordan`: sqrt(max(1, d_out /
    d_in)), with learning rates of about 0.02 (Jordan 2024). `spectral`: sqrt(d_out / d_in) (Bernstein 2025)."""
    adam_lr: Positive | None = None
    """Peak learning rate of AdamW for everything that is not a matrix. It follows the schedule of train.lr. null:
    train.lr."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the Newton-Schulz products. bfloat16, as in Jordan's code, is faster on a GPU."""


class Schedule(Named):
    """Base class of the schedules: the learning rate after the warm-up. A config names the kind: `schedule: cosine`."""

    section: ClassVar[Section] = "schedule"

    final_lr: ClassVar[float] = 0.1
    """Learning rate at the end, as a fraction of the peak, unless train.final_lr sets it."""
    decay: ClassVar[float] = 0.0
    """Fraction of the steps after the warm-up that decay, unless train.decay sets it. 0: the schedule has no separate
    decay phase."""
    holds_peak: ClassVar[bool] = False
    """Whether the learning rate stays at its peak for a while, so that a longer run can continue from there."""


ScheduleName = Annotated[str, KindName(Schedule)]


class Cosine(Schedule):
    """Half a cosine wave from the peak to the final learning rate (Loshchilov 2017)."""

    kind: Literal["cosine"] = "cosine"


class Linear(Schedule):
    """Straight line from the peak to the final learning rate."""

    kind: Literal["linear"] = "linear"


class Constant(Schedule):
    """Peak learning rate until the end."""

    kind: Literal["constant"] = "constant"
    final_lr: ClassVar[float] = 1.0
    holds_peak: ClassVar[bool] = True


class WSD(Schedule):
    """Warm-up, stable, decay: the peak, then a straight line to the final learning rate (Hu 2024)."""

    kind: Literal["wsd"] = "wsd"
    decay: ClassVar[float] = 0.2
    holds_peak: ClassVar[bool] = True


class Objective(Registered):
    """Base class of the objectives that training minimizes, in addition to the z-loss and the losses of routers."""

    section: ClassVar[Section] = "objective"
    default_kind: ClassVar[str | None] = "next_token"


class NextToken(Objective):
    """Cross-entropy of each token, given the tokens before it."""

    kind: Literal["next_token"] = "next_token"


class LrMultipliers(Settings):
    """Factors on the learning rate by role, for every optimizer. They also change the weight decay per step, which is
    multiplied by the learning rate."""

    embedding: Positive = 1.0
    """Factor for lookup tables: tokens, positions, distances for the scores."""
    input: Positive = 1.0
    """Factor for projections that read the stream: q, k, v, up, gate and those of mixers."""
    narrow: Positive = 1.0
    """Factor for projections to a few numbers that are all read together: routers of experts, latent vectors."""
    output: Positive = 1.0
    """Factor for projections that write to the stream: attention's output, the MLP's down projection."""
    head: Positive = 1.0
    """Factor for the untied head and the projection before it."""
    convolution: Positive = 1.0
    """Factor for the kernels of convolutions over tokens."""
    constant: Positive = 1.0
    """Factor for parameters that start at a fixed value: norms, biases, sinks, decay rates."""
