"""benchmark.csv of a capstone. Its columns depend on `path.measures` in capstone.toml; order as here, all of them.

kernel, call (options A, B, D, E): two lines a timed shape, `before` and `after`::

    shape,batch,q_heads,kv_heads,seq_q,seq_k,head_dim,dtype,mask,variant,median_ms,iqr_ms,n,tflops,gbs,
    device,hardware,driver,torch,triton,python

- `shape` is a name of capstone.toml, the eight columns after it are that shape's.
- `median_ms` and `iqr_ms` of `n` timed calls or windows after warm-up.
- `tflops` = 4 · batch · q_heads · head_dim · visible pairs / median; `gbs` = least bytes / median: Q and O once a query
  head, K and V once a kv head (2 · head_dim · batch · (q_heads · seq_q + kv_heads · seq_k) · bytes a value; the LSE and
  a new token's K and V aren't counted). Six significant digits will do. With measures = "call" both are empty.
- `device` is ``cuda``, ``cpu`` or ``interpreter`` (Triton's, on a CPU); `hardware` the card's or the processor's name,
  as the driver gives it; `driver` is empty without a GPU, `triton` where none took part.

errors (option C): one line a timed shape, the error of sampled rows against float64::

    shape,batch,q_heads,kv_heads,seq_q,seq_k,head_dim,dtype,mask,inputs,rotary_base,seed,rows,p50,p90,p99,max,
    tolerance,within,device,hardware,driver,torch,triton,python

- a row's error is max over head_dim of |o - exact|; `rows` rows were drawn uniformly (256 or more), `p50` … `max` are
  quantiles of their errors (linear between neighbours, as numpy.quantile gives them).
- `tolerance` is the absolute bound that you audit; `within` is ``yes`` where max <= tolerance, else ``no``.

benchmark.png is what `plot.py`'s ``figure(rows)`` draws of the table (rows: a list of dicts, column → text, as
csv.DictReader gives them; it returns a matplotlib Figure), saved with the table's hash in its metadata::

    digest = hashlib.sha256(csv_bytes).hexdigest()
    figure.savefig("benchmark.png", metadata={"Source": f"benchmark.csv sha256:{digest}"})
"""

from __future__ import annotations

SHAPE = ("shape", "batch", "q_heads", "kv_heads", "seq_q", "seq_k", "head_dim", "dtype", "mask")
MACHINE = ("device", "hardware", "driver", "torch", "triton", "python")
TIMES = (*SHAPE, "variant", "median_ms", "iqr_ms", "n", "tflops", "gbs", *MACHINE)
ERRORS = (
    *SHAPE, "inputs", "rotary_base", "seed", "rows", "p50", "p90", "p99", "max", "tolerance", "within", *MACHINE,
)  # fmt: skip
DEVICES = ("cuda", "cpu", "interpreter")
