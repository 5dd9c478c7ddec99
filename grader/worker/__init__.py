"""The side of the boundary that imports a submission. Small, and without a single import from the rest of `grader`.

The launcher lays this folder at a fixed path as the package `grader_worker` and starts `start.py` there: `bootstrap.py`
gives up every privilege and hands over to `main.py` with the protocol's socket as descriptor 3. What to load comes as
the first message over the socket; where the submission lies, and settings that must be there before a process starts
(`MALLOC_PERTURB_`, `TRITON_INTERPRET`), come in the environment.

`wire`, `codec` and `channel` carry values and are used by the judge too; `serve` answers requests, `calls` performs
one call, `guards` and `tensors` lay its arguments into guarded buffers and check its results, `hosting` makes stubs
of the judge's objects, `loading` imports the submission's files.
"""
