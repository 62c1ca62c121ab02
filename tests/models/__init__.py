"""Models of what must hold under every interleaving, and the script that runs them."""
