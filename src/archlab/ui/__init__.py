"""`archlab ui`: a local server whose screens show the answers of the commands.

`server` starts it, and `guard` refuses requests that are not allowed. `app` has the address of the workbench, and
`screens` those of all others. `routing` turns errors into messages, `cores` computes on all cores, and `pages` renders
templates. `configs` reads the config that a URL names, `saved` makes the pages that a screen saves, and `search` finds
places by name. Each screen has a folder.

- `bench` contains the workbench, its inputs, and the numbers of each box of its diagram.
- `compare` contains the comparison of configs, and the study of their differences.
- `atlas` contains published models, their charts, and the page of each.
- `choice` contains a choice, its pictures with sliders, and its cost in the model of the workbench.
- `lab` contains studies and runs.
"""
