"""Division of a training among the processes of torchrun."""

from archlab.config.core.base import Count, Settings


class ParallelConfig(Settings):
    """Number of processes along each dimension of parallelism. Their product must equal the number that torchrun
    starts."""

    replicate: Count = 1
    """Number of groups that each hold the whole model. They average their gradients (data parallelism)."""
    shard: Count | None = None
    """Number of processes in a group that divide weights, gradients and optimizer state among them (ZeRO 3, Rajbhandari
    2019; torch's fully_shard). null: all remaining processes."""
    tensor: Count = 1
    """Number of processes that work on the same windows and divide the heads and hidden widths of every layer (tensor
    parallelism, Shoeybi 2019). Each holds the whole embedding, norms and head."""
    expert: Count = 1
    """Number of processes with different windows that divide the experts of every mixture (expert parallelism, Lepikhin
    2020). They exchange the tokens for the experts, and each holds everything else."""
    context: Count = 1
    """Number of processes that divide the tokens of the same windows (context parallelism; Llama 3, 2024). Each has its
    own queries and gathers the keys and values of all. Weights are divided among them as with `shard`."""
