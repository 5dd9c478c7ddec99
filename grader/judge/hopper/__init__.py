"""The judge of lab09: probes of machine code, plans of warpgroups, FP8, annotations of Hopper's source, its table."""
