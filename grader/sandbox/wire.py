"""The types of values that cross to a worker, under the name by which a lab's tests import them."""

from grader.worker.wire import Record, Tensor

__all__ = ["Record", "Tensor"]
