"""Static pages: self-contained HTML whose every text is escaped and whose policy lets nothing else run."""
