"""Content of a model folder, and the conversion of a model, as text."""

from rich.console import Console

from archlab.atlas.inspect import Inspection
from archlab.infer.convert import Converted
from archlab.report.text_table import print_columns


def print_inspection(out: Console, inspection: Inspection) -> None:
    made_here = inspection.trained is not None and inspection.model_type is None
    architecture = inspection.architecture or "not supported by archlab"
    family = "made here" if made_here else f"{inspection.model_type} ({architecture})"
    trained = [] if inspection.trained is None else [("trained", inspection.trained)]
    print_columns(out, ("family", family), [*trained, *inspection.choices.items()])
    if inspection.choices:
        out.print(f"unusual: {', '.join(inspection.unusual) or 'nothing'}", soft_wrap=True)
    out.print("loads" if inspection.loads else "\n".join(["does not load:", *inspection.problems]), soft_wrap=True)


def print_converted(out: Console, converted: Converted) -> None:
    print_columns(out, ("tensors", "where they come from"), converted.tensors)
    print_columns(out, ("change", "effect", "detail"), converted.changes)
    out.print(f"{converted.difference}\nwritten as {converted.form}", soft_wrap=True)
