"""Output of commands that texts of the evidence make statements about, and the evaluation of these statements."""

import io
import json
import shlex
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import cache
from typing import Any

from archlab.cli.app import main
from archlab.evidence.topics import commands_of


class Answer(dict[str, Any]):
    """A JSON object whose values are also attributes."""

    __getattr__ = dict.__getitem__


@cache
def _answer_of(*words: str) -> Answer:
    with redirect_stdout(io.StringIO()) as printed:
        assert main([*words, "--json"]) == 0
    found = json.loads(printed.getvalue(), object_hook=Answer)
    return found if isinstance(found, Answer) else Answer(answers=found)


def false_sentences(command: str, shows: Mapping[str, str]) -> list[str]:
    """Return the sentences about the output of a command whose expressions are false."""
    program, *words = shlex.split(command)
    if program == "python":
        option, code = words
        assert option == "-c"
        with redirect_stdout(io.StringIO()) as printed:
            exec(code, {})
        names = Answer(printed=printed.getvalue())
    else:
        assert program == "archlab"
        names = Answer(_answer_of(*words))
        for without in commands_of(command, shows)[1:]:
            names["without"] = _answer_of(*shlex.split(without)[1:])
        names["answer"] = _answer_of(*words)
    return [sentence for sentence, expression in shows.items() if not eval(expression, dict(names))]
