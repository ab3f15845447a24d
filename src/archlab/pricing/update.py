"""Operations of the update of the weights, with their FLOPs and bytes."""

from collections import Counter
from collections.abc import Iterator

from archlab.config.components.component import MatrixShape
from archlab.config.components.work import FLOAT32_BYTES, Operation
from archlab.config.optimizer import Muon, Optimizer

OPTIMIZER_FLOPS = 16
"""FLOPs of the update per parameter: AdamW's two running means, root, quotient and weight decay, and the norm for
gradient clipping."""

OPTIMIZER_NUMBERS = 10
"""Number of float32 values that the update reads or writes per parameter.

AdamW (7) reads the weight, the gradient and two running means, and writes the weight and the means. Gradient clipping
(3) reads the gradient for its norm, then reads and writes the gradient.
"""


def update(
    optimizer: Optimizer, n_parameters: float, shapes: Counter[MatrixShape], bytes_each: int, sharing: int = 1
) -> Iterator[Operation]:
    """Yield the operations of one update of `n_parameters` parameters. An optimizer from a plug-in counts like AdamW.

    `shapes` counts the parameters that Muon orthogonalizes, with `bytes_each` bytes per number in the products.
    `sharing` processes have parts of each of them.
    """
    moved = OPTIMIZER_NUMBERS * n_parameters * FLOAT32_BYTES
    yield Operation("optimiser", "optimiser", OPTIMIZER_FLOPS * n_parameters, moved=moved)
    if isinstance(optimizer, Muon):
        yield from orthogonalizing(optimizer, shapes, bytes_each, sharing)


def dealt(shapes: Counter[MatrixShape], sharing: int) -> Counter[MatrixShape]:
    """Return the parameters whose matrices Muon deals to the processes that share them.

    Each process orthogonalizes an equal share of these. All processes orthogonalize every remaining matrix. Experts are
    dealt if they divide evenly among the processes. Other matrices are dealt in groups of `sharing`.
    """
    return +Counter(
        {
            shape: count - count % sharing if shape.stacked == 1 else count * (shape.stacked % sharing == 0)
            for shape, count in shapes.items()
        }
    )


def orthogonalizing(muon: Muon, shapes: Counter[MatrixShape], bytes_each: int, sharing: int = 1) -> Iterator[Operation]:
    """Yield the Newton-Schulz steps of Muon in one process, for matrices with `bytes_each` bytes per number.

    A step has three products. With m rows and n columns, and m <= n, they have 2 m^2 n, 2 m^3 and 2 m^2 n FLOPs.
    """
    divided = dealt(shapes, sharing)
    for shape, count in shapes.items():
        m, n = sorted((shape.d_out, shape.d_in))
        n_dealt = shape.stacked * divided[shape]
        times = (shape.stacked * count - n_dealt + n_dealt // sharing) * muon.steps
        products = Operation(
            "products", "optimiser", 4 * m * m * n + 2 * m**3, moved=(4 * m * n + 5 * m * m) * bytes_each, times=3
        )
        sums = Operation(
            "element-wise", "optimiser", 2 * m * n + 3 * m * m, moved=(5 * m * n + 7 * m * m) * bytes_each, times=5
        )
        yield from (operation.repeated(times) for operation in (products, sums))
