"""The public ranking of a class: who may be on it, in which order, and what it tells of them."""
