"""Models of the protocols in Promela, and the program that checks them: `make model`."""
