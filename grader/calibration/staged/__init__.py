"""What is staged for the worker that measures a card."""
