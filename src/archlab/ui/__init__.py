"""`archlab ui`: a local server whose screens show the answers of the commands.

`server` starts it, and `guard` refuses requests that are not allowed. `app` has the address of the workbench, and
`screens` those of all others. `routing` turns errors into messages, `cores` computes on all cores, and `pages` renders
templates. `configs` reads the config that a URL names, `saved` makes the pages that a screen saves, and `search` finds
places by name.

Each screen has a folder. `bench` is the workbench with its inputs and the numbers of its boxes. `compare` compares
configs, and makes the study of their differences. `atlas` shows published models. `choice` explains a choice, with
pictures and its cost in the model of the workbench. `lab` trains studies, and shows studies and runs.
"""
