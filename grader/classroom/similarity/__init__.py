"""Which submissions share code that neither the starter nor the course gave them."""
