"""What is staged for a baseline's worker; nothing else of the project is there."""
