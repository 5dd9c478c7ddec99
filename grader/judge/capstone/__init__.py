"""What a capstone is judged by: its files' forms, its patch, its harness, its benchmark, its text (lab10)."""
