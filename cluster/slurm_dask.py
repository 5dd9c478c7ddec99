"""A dask.distributed cluster on Slurm for `grade batch --scheduler`: dask-jobqueue submits the workers.

``python cluster/slurm_dask.py --workers 8 [--gpu]`` prints the scheduler's address and keeps the cluster until Ctrl-C;
then, in another terminal: ``grade batch SUBMISSIONS -o RESULTS --scheduler ADDRESS``. The course, the submissions and
the results must have the same paths on every node.
"""

from __future__ import annotations

import argparse
import time

from dask_jobqueue import SLURMCluster


def make_cluster(*, gpu: bool, cores: int = 4, memory: str = "16GB", walltime: str = "04:00:00") -> SLURMCluster:
    """A cluster without workers yet; `scale` submits them.

    Args:
        gpu: one GPU a Slurm job. Each job is then one worker with one thread and one unit of the resource ``GPU``, so
            that nothing else runs beside a timed submission; Slurm sets its CUDA_VISIBLE_DEVICES.
        cores: of each job; without a GPU that many workers with one thread each.
    """
    workers = 1 if gpu else cores
    # A worker's threads are its jobs at a time; one a process keeps a killed worker's loss to one submission.
    threads = ["--nthreads", "1"]
    return SLURMCluster(
        cores=cores,
        processes=workers,
        memory=memory,
        walltime=walltime,
        job_name="grade",
        job_extra_directives=["--gres=gpu:1"] if gpu else [],
        worker_extra_args=[*threads, "--resources", "GPU=1"] if gpu else threads,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4, help="Slurm jobs to submit")
    parser.add_argument("--gpu", action="store_true", help="a GPU for each of them")
    parser.add_argument("--cores", type=int, default=4)
    parser.add_argument("--memory", default="16GB")
    parser.add_argument("--walltime", default="04:00:00")
    words = parser.parse_args()
    with make_cluster(gpu=words.gpu, cores=words.cores, memory=words.memory, walltime=words.walltime) as cluster:
        cluster.scale(jobs=words.workers)
        print(cluster.scheduler_address, flush=True)
        while True:
            time.sleep(60)


if __name__ == "__main__":
    main()
