"""The command `archlab doctor`."""

from importlib.metadata import PackageNotFoundError, requires, version
from typing import Literal, NamedTuple

from packaging.requirements import Requirement

from archlab.cli.arguments import ExtraName, Flag
from archlab.cli.terminal import print_json, print_table
from archlab.config.problems import choose
from archlab.errors import UserError
from archlab.extras import EXTRAS, install
from archlab.machine import versions


class Finding(NamedTuple):
    """State of one part of the installation."""

    part: str
    """Package group, extra or device."""
    state: Literal["ok", "missing", "broken"]
    feature: str
    """Feature of archlab that needs the part."""
    details: str
    """Versions that were found, or what is wrong and the command that helps."""


def run(*extra: ExtraName, json: Flag = False) -> int:
    """Show which parts of archlab work here: required packages, optional features, the compiler and the GPU.

    The command compiles a small function, which can take half a minute. Exit code 1: a required package is missing, or
    one of the extras that you name.

    Parameters
    ----------
    extra
        Extras that you need, as in gguf hub. Default: none; a missing extra is then no fault.
    json
        Print JSON.
    """
    if unknown := next((name for name in extra if name not in EXTRAS), None):
        raise UserError(f"unknown extra {unknown!r}{choose(unknown, list(EXTRAS))}")
    packages = _packages()
    features = [_extra(name) for name in EXTRAS]
    findings = [packages, *features]
    if packages.state == "ok":
        findings += [_compiler(), _gpu()]
    if json:
        print_json({"versions": versions(), "findings": [finding._asdict() for finding in findings]})
    else:
        print("\n".join(f"{name:<8}{value}" for name, value in versions().items()))
        print_table(Finding._fields, findings)
        if absent := [finding.part for finding in features if finding.state != "ok"]:
            wanted = [name for name in absent if name in extra]
            print(f"To install an extra: {install(*(wanted or absent[:1]))}")
        print("To complete commands in the shell: archlab completion --install")
    return int(any(finding.state != "ok" for finding in (packages, *features) if finding.part in ("packages", *extra)))


def _packages() -> Finding:
    """Return whether all required packages are installed in an allowed version."""
    needed = _requirements("")
    faults = [fault for requirement in needed if (fault := _fault(requirement))]
    details = f"{'; '.join(faults)}; run: pip install archlab" if faults else f"{len(needed)} packages"
    return Finding("packages", "broken" if faults else "ok", "all", details)


def _extra(name: str) -> Finding:
    needed = _requirements(name)
    faults = [fault for requirement in needed if (fault := _fault(requirement))]
    if faults:
        return Finding(name, "missing", EXTRAS[name], "; ".join(faults))
    found = ", ".join(f"{requirement.name} {version(requirement.name)}" for requirement in needed)
    return Finding(name, "ok", EXTRAS[name], found)


def _requirements(extra: str) -> list[Requirement]:
    """Return the packages that archlab needs, or, if `extra` is not empty, those that this extra adds."""
    try:
        every = [Requirement(text) for text in requires("archlab") or ()]
    except PackageNotFoundError:
        raise UserError("archlab is imported from a folder and not installed; run there: pip install -e .") from None
    return [
        requirement
        for requirement in every
        if (requirement.marker is None) != bool(extra)
        and (requirement.marker is None or requirement.marker.evaluate({"extra": extra}))
    ]


def _fault(requirement: Requirement) -> str:
    """Return what is wrong with an installed package, or an empty string."""
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return f"no {requirement.name}"
    if requirement.specifier.contains(found, prereleases=True):
        return ""
    return f"{requirement.name} is {found}, but {requirement.specifier} is needed"


def _compiler() -> Finding:
    import torch

    from archlab.model.graphs import check_compiler

    feature = "train.compile"
    try:
        check_compiler("train.compile")
    except UserError as error:
        return Finding("compiler", "missing", feature, str(error))
    try:
        torch.compile(torch.sin, fullgraph=True)(torch.ones(4))
    except Exception as error:  # a compiler without headers or OpenMP can fail in any way
        return Finding("compiler", "broken", feature, _last_line(error))
    return Finding("compiler", "ok", feature, "compiled a function")


def _gpu() -> Finding:
    import torch

    feature = "train.device=cuda"
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
        return Finding("GPU", "missing", feature, f"none found; torch is {built}")
    try:
        torch.ones(8, 8, device="cuda").matmul(torch.ones(8, 8, device="cuda")).sum().item()
    except RuntimeError as error:  # such as a GPU that this build does not support
        return Finding("GPU", "broken", feature, _last_line(error))
    return Finding("GPU", "ok", feature, torch.cuda.get_device_name())


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
