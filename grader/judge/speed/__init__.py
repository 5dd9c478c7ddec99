"""Speed judged: what is raced against what, how a race is run and believed, what it earns."""
