"""What a card really does: rates measured on it make its hardware profile, the reference's speed its thresholds."""
