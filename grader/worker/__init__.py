"""The other side of the boundary: processes that import a submission, and those that run what it recorded. Without a
single import from the rest of `grader`.

The launcher lays this folder at a fixed path as the package `grader_worker` and starts `start.py` there: `bootstrap`
gives up every privilege and hands over to `main` with the protocol's socket as descriptor 3. What to load comes as the
first message over the socket; where the submission lies, and settings that must be there before a process starts
(`MALLOC_PERTURB_`, threads), come in the environment. `forking` is started in `main`'s place for a warm executor.

Protocol, used by the judge too: `wire`, `codec` and `channel` carry values, `plain` checks what an untrusted process
wrote. `serve` answers requests.

A submission's process: `loading` imports its files, `calls` performs one plain call, `guards` and `tensors` lay its
arguments into guarded buffers and check its results, `hosting` makes stubs of the judge's objects; `timers`, `timing`
and `timing_torch` time windows of calls. `record/` runs a launcher on tensors without data and writes what it did as a
tape; there `fake_cuda`, `stand_in_driver` and `gpu_target` answer for a card that isn't there.

Both sides of a tape: `tape` is its schema, `rules` what a launcher may do (`allocated`: how much memory that takes),
`kernel_closure` how kernels are written down.

The executor's process, which never sees a submission: `execute/` validates a tape, rebuilds its kernels and runs it, in
Triton's interpreter (repaired by `interpreter_fixes`) or on a GPU; `traffic_model` is what it counts. `inspect_kernels`
compiles a tape's launches for given cards, `cuda_compile` CUDA C++, `sass` and `sass_loops` read the machine code;
`cuda_launch` runs and times it (`capture_plan`: what a profiler's capture of lab04's copies holds).
"""
