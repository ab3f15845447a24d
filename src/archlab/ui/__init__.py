"""`archlab ui`: a local server whose screens show the answers of the commands.

`server` starts it, and `guard` refuses requests that are not allowed. `app` has the address of the workbench, and
`screens` those of all others. `routing` turns errors into messages, `cores` computes on all
cores, and `pages` renders templates. The screens:

- Workbench: `workbench`, `fields` (inputs), `parts` (numbers of each box of the diagram).
- Compare: `compare`.
- Models: `models`, `scatter` (its chart), `model_page`.
- Choices: `choice` (also the search), `play` (pictures with sliders), `open_model` (cost in the workbench's model).
- Studies and runs: `lab`.

`configs` reads the config that a URL names, and `saved` makes the pages that a screen saves.
"""
