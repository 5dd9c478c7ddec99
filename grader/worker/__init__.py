"""The side of the boundary that imports a submission. Small, and without a single import from the rest of `grader`.

The launcher lays this folder at a fixed path as the package `grader_worker` and starts

    python -I -B <folder above>/grader_worker/main.py

with the protocol's socket as descriptor 3. `main.py` puts the folder above its own on `sys.path` itself. What to load
and where the submission lies comes as the first message over the socket, never by argument or environment. The
environment carries `MALLOC_PERTURB_`, `TRITON_INTERPRET` and the like, which must be there before the process starts.
"""
