"""Values of fields as people write them: to read, and to type."""

from typing import Any

from archlab.config.core.yaml_text import parse_yaml, to_yaml_line
from archlab.config.identity import flatten, resolved
from archlab.config.schema import Config
from archlab.errors import UserError


def shown(value: Any) -> str:
    """Return a value to read, such as `500,000`. Null is `none`."""
    match value:
        case None:
            return "none"
        case bool() | str():
            return to_yaml_line(value)
        case int() | float() if value == int(value):
            return f"{int(value):,}"
        case float():
            return f"{value:.5g}"
        case _:
            return to_yaml_line(value)


def shown_fields(config: Config) -> dict[str, str]:
    """Return each field of a resolved config with its value to read, without empty sections. A value that follows from
    other fields is marked, as in `59.867, from sqrt_d_model` and `128, derived`."""
    written = flatten(config.model_dump(mode="json"))

    def origin(path: str, value: Any) -> str:
        match written.get(path, value):
            case str() as rule if rule != value:
                return f", from {rule}"
            case None if value is not None:
                return ", derived"
            case _:
                return ""

    return {
        path: shown(value) + origin(path, value) for path, value in flatten(resolved(config)).items() if value != {}
    }


def typed(value: Any) -> str:
    """Return a value in the form in which a person types it, such as `500000` for the number 500000.0."""
    return to_yaml_line(int(value) if isinstance(value, float) and value.is_integer() else value)


def means(text: str, value: Any) -> bool:
    """Return whether a typed text has this value. `5e5` and `500000` both mean 500000.0."""
    try:
        meant = parse_yaml(text, "value")
    except UserError:
        return False
    return meant == value and isinstance(meant, bool) == isinstance(value, bool)
