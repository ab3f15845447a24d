"""Division of a training run among the processes that torchrun starts."""

from archlab.config.core.base import Count, Settings
from archlab.displayed import Displayed


class ParallelConfig(Displayed, Settings):
    """Number of processes along each dimension of parallelism. The product of these numbers must equal the number of
    processes that torchrun starts."""

    replicate: Count = 1
    """Number of process groups that each have a copy of the whole model (data parallelism). The groups average their
    gradients."""
    shard: Count | None = None
    """Number of processes that divide weights, gradients and optimizer state among them (ZeRO 3, Rajbhandari 2019;
    torch's fully_shard). null: all remaining processes."""
    tensor: Count = 1
    """Number of processes that divide the heads and hidden widths of every layer among them (tensor parallelism,
    Shoeybi 2019). They train on the same windows, and each stores the whole embedding, norms and head."""
    expert: Count = 1
    """Number of processes that divide the experts of every mixture among them (expert parallelism, Lepikhin 2020). Each
    process trains on its own windows and stores all other weights. The processes exchange the tokens that are routed to
    experts."""
    context: Count = 1
    """Number of processes that divide the tokens of the same windows among them (context parallelism; Llama 3, 2024).
    Each computes its own queries and gathers the keys and values of all processes. Weights are divided as with
    `shard`."""
